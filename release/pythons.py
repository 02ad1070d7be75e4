"""Python versions that get wheels, and their interpreters on this machine.

Finds versions installed by pyenv, uv and Debian. If uv is installed, it downloads missing versions.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
UV = Path(os.environ.get("UV_PYTHON_INSTALL_DIR", Path.home() / ".local/share/uv/python"))


def find(version: str) -> Path | None:
    """Return an interpreter of that version that works and for which extensions can be compiled."""
    return next((path for path in _candidates(version) if _is(path, version)), None)


def fetch(version: str) -> Path | None:
    """Return an interpreter that works; uv installs it if necessary."""
    found = find(version)
    if found is None and shutil.which("uv"):
        subprocess.run(["uv", "python", "install", "--no-bin", version], check=False)
        found = find(version)
    return found


def newest() -> str:
    """Return the newest version that is on this machine."""
    return next(version for version in reversed(VERSIONS) if find(version))


def _candidates(version: str) -> Iterator[Path]:
    yield from sorted(PYENV.glob(f"versions/{version}.*/bin/python{version}"), reverse=True)
    yield from sorted(UV.glob(f"cpython-{version}.*/bin/python{version}"), reverse=True)
    if on_path := shutil.which(f"python{version}"):
        yield Path(on_path)


def _is(python: Path, version: str) -> bool:
    asks = (
        "import sys, sysconfig, venv, os.path;"
        "assert os.path.exists(sysconfig.get_path('include') + '/Python.h');"
        "print(*sys.version_info[:2], sep='.')"
    )
    done = subprocess.run([python, "-c", asks], capture_output=True, text=True, check=False)
    return (done.returncode, done.stdout.strip()) == (0, version)
