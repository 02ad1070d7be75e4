"""pip of a simulated venv: `pip.py VENV install --no-index --find-links=FOLDER nsqcy==VERSION`.

Installs the nsqcy under test as a package of the venv, with that version.
"""

import os
import shutil
import sys
import tomllib
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "nsqcy"
PROJECT = tomllib.loads(PACKAGE.with_name("pyproject.toml").read_text())


def install(venv: Path, version: str) -> None:
    """Install the package as links to the files under test, except the file with the version."""
    copy = venv / "lib/nsqcy"
    shutil.copytree(PACKAGE, copy, copy_function=os.symlink)
    text = (PACKAGE / "__init__.py").read_text()
    (line,) = [each for each in text.splitlines() if each.startswith("__version__")]
    (copy / "__init__.py").unlink()
    (copy / "__init__.py").write_text(text.replace(line, f'__version__ = "{version}"'))
    scripts(venv, copy.parent)
    for folder, patterns in PROJECT["tool"]["setuptools"]["data-files"].items():
        (venv / folder).mkdir(parents=True)
        for file in (file for pattern in patterns for file in PACKAGE.parent.glob(pattern)):
            shutil.copy(file, venv / folder)


def scripts(venv: Path, library: Path) -> None:
    (venv / "bin").mkdir(parents=True, exist_ok=True)
    for name, entry in PROJECT["project"]["scripts"].items():
        module, function = entry.split(":")
        run = f"import sys; from {module} import {function}; sys.exit({function}())"
        script = venv / "bin" / name
        script.write_text(
            f'#!/bin/sh\nexport PYTHONPATH="{library}:$PYTHONPATH"\n'
            f'exec {sys.executable} -P -c "{run}" "$@"\n'
        )
        script.chmod(0o755)
    python = venv / "bin/python"
    python.write_text(
        f'#!/bin/sh\nexport PYTHONPATH="{library}:$PYTHONPATH"\nexec {sys.executable} -P "$@"\n'
    )
    python.chmod(0o755)


def main() -> None:
    venv, *words = sys.argv[1:]
    match words:
        case ["install", "--no-index", "--find-links=wheels", requirement]:
            install(Path(venv), requirement.removeprefix("nsqcy=="))
        case _:
            raise SystemExit(f"pip {words} is not simulated")


if __name__ == "__main__":
    main()
