"""Run the unit tests of the changed files: `make quick`.

    python tests/quick.py [--base main] [--list] [PYTEST ARGUMENTS]

A file has changed if it differs from the merge base with main, committed or not. The tests of a
package are in its directory in tests/unit. Tests of higher packages that import a changed file,
directly or not, run as well, and so does tests/meta. No daemon starts. `make test` runs the tests
marked `slow`.
"""

import argparse
import functools
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.package_order import compiled_module, imports, ours, package, sources  # noqa: E402

ALWAYS = ["tests/meta", "tests/unit/test_names.py"]
EVERYTHING = ["tests/meta", "tests/unit"]
LEFT_OUT = "not slow and not soak and not dist and not spark"
# Paths outside the packages, each with the directory in tests/unit that tests it.
OUTSIDE = {
    "Dockerfile": "conf",
    "conf": "conf",
    "docs": "conf",
    "loadtest": "loadtest",
    "pyproject.toml": "conf",
}
OF_ALL = ("Makefile", "setup.py", "tests/conftest.py", "tests/quick.py")

Graph = dict[str, set[str]]


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the unit tests of what has changed.")
    parser.add_argument("--base", default="main", help="branch to compare with")
    parser.add_argument("--list", action="store_true", help="print the tests and run none")
    options, words = parser.parse_known_args()
    chosen = selected(changed(options.base))
    print("quick:", *chosen, flush=True)
    if options.list:
        return 0
    command = [sys.executable, "-m", "pytest", "-q", "-m", LEFT_OUT, "--durations=5", *chosen]
    return subprocess.run([*command, *words], cwd=ROOT).returncode


def changed(base: str) -> list[str]:
    """Return the files that differ from the merge base, including untracked ones."""
    try:
        start = git("merge-base", base, "HEAD").strip()
    except subprocess.CalledProcessError:
        sys.exit(f"quick: no common commit with {base}: specify a different branch with --base")
    names = git("diff", "--name-only", "--no-renames", "-z", start)
    return sorted(set((names + git("ls-files", "-oz", "--exclude-standard")).split("\0")) - {""})


def git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def selected(paths: Iterable[str]) -> list[str]:
    """Return the paths of the test files and directories to run for these changed paths."""
    paths = list(paths)
    if not paths:
        return ALWAYS
    if any(path in OF_ALL for path in paths):
        return EVERYTHING
    folders = {package(each) for path in paths for each in modules_of(path)}
    folders |= {OUTSIDE[top] for path in paths if (top := path.partition("/")[0]) in OUTSIDE}
    found = {f"tests/unit/{name}" for name in folders}
    found |= {path for path in paths if path.startswith("tests/unit/") and is_test(path)}
    found |= tests_of({each for path in paths for each in modules_of(path) | helpers_of(path)})
    existing = {path for path in found if (ROOT / path).exists()}
    inside = {path for path in existing if str(Path(path).parent) in existing}
    return ALWAYS + sorted(existing - inside)


def is_test(path: str) -> bool:
    return Path(path).name.startswith("test_")


def modules_of(path: str) -> set[str]:
    """Return the modules affected by a source file, by their names below nsqcy: the file's own
    module or, for a C file or its header, the modules that include the header."""
    parts = Path(path).parts
    if parts[:2] in (("cext", "include"), ("cext", "src")):
        header = Path(parts[-1]).with_suffix(".h").name
        return {name for name, file in sources() if header in imports(file)} or {"base"}
    if parts[:2] == ("cext", "nsqcy"):
        return {compiled_module(ROOT / path)}
    if parts[0] != "nsqcy" or len(parts) == 1:
        return set()
    inside = [*parts[1:-1], parts[-1].partition(".")[0]]
    return {".".join(each for each in inside if each != "__init__") or "nsqcy"}


def helpers_of(path: str) -> set[str]:
    folder, name = os.path.split(path)
    return {f"support.{Path(name).stem}"} if folder == "tests/support" else set()


def tests_of(touched: set[str]) -> set[str]:
    """Return the unit tests that import one of these modules or helpers, directly or not."""
    wanted = above(touched, graph())
    tests = (ROOT / "tests/unit").rglob("test_*.py") if wanted else ()
    return {str(path.relative_to(ROOT)) for path in tests if used_by(path) & wanted}


@functools.cache
def graph() -> Graph:
    """Return the imports of each nsqcy module and each test helper, limited to these files."""
    found: Graph = {}
    for name, path in sources():
        found.setdefault(name, set()).update(ours(imports(path)) - {name})
    for path in (ROOT / "tests/support").glob("*.py"):
        found[f"support.{path.stem}"] = used_by(path)
    return found


def used_by(path: Path) -> set[str]:
    """Return the nsqcy modules and test helpers that a Python file imports."""
    found = imports(path)
    return ours(found) | {name for name in found if name.startswith("support.")}


def above(touched: set[str], uses: Graph) -> set[str]:
    """Return these modules and all modules that use one of them, directly or not."""
    found = set(touched)
    while more := {name for name, used in uses.items() if used & found} - found:
        found |= more
    return found


if __name__ == "__main__":
    sys.exit(main())
