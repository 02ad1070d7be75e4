"""Required and forbidden files in an sdist and a wheel, by name."""

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

from support import package_order

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DATA = ("nsqcy/nsqadmin/static/*", "nsqcy/nsqadmin/templates/*")
# Cython writes .html files next to modules; templates have their own directory.
GENERATED = re.compile(
    r"^(?!cext/src/).*"
    r"(\.so|(?<!templates)/\w+\.html|\.py[cod]|(?<!/floor)(?<!/slow_disk)\.c)$"
)
UNWANTED = re.compile(r"(\.c|\.h|\.pyx|\.pxd|(?<!templates)/\w+\.html|\.py[cod])$")


def sources(*patterns: str) -> set[str]:
    found = (path for each in patterns for path in ROOT.glob(each) if path.is_file())
    return {str(path.relative_to(ROOT)) for path in found}


def missing_from_sdist(names: set[str]) -> set[str]:
    """Return the missing files among those needed to build, test and document nsqcy."""
    wanted = sources("nsqcy/**/*.py", "nsqcy/**/*.pyi", "cext/**/*.pyx", "cext/**/*.pxd")
    wanted |= sources(
        "cext/**/*.h", "cext/src/*.c", "tests/**/*.py", "loadtest/**/*.py", "release/*.py"
    )
    wanted |= sources("conf/**/*.*", "docs/**/*.md") | sources(*DATA)
    wanted |= {"Makefile", "LICENSE", "README.md", "CHANGELOG.md", "Dockerfile", "nsqcy/py.typed"}
    return wanted - names


def generated(names: set[str]) -> set[str]:
    return {name for name in names if GENERATED.search(name)}


def missing_from_wheel(names: set[str]) -> set[str]:
    wanted = sources("nsqcy/**/*.py", "nsqcy/**/*.pyi", "pyspark_nsq/*.py", *DATA)
    wanted |= {"nsqcy/py.typed"}
    inside = {re.sub(r"^nsqcy-[^/]+\.(data|dist-info)/", r"\1/", name) for name in names}
    tables = PROJECT["tool"]["setuptools"]
    for folder, patterns in tables["data-files"].items():
        found = sources(*patterns)
        assert found, patterns
        wanted |= {f"data/data/{folder}/{Path(path).name}" for path in found}
    wanted |= {f"dist-info/{name}" for name in ("licenses/LICENSE", "METADATA", "entry_points.txt")}
    return wanted - inside


def modules_of(names: set[str]) -> set[str]:
    """Return the extension modules among `names`."""
    found = (re.fullmatch(r"nsqcy/([\w/]+)\.cpython-.*\.so", name) for name in names)
    return {each[1].replace("/", ".") for each in found if each}


def compiled_modules() -> set[str]:
    """Return the extension modules that the sources define."""
    names = {name for name, path in package_order.sources() if path.suffix == ".pyx"}
    assert names
    return names


def unwanted(names: set[str]) -> set[str]:
    """Return the files in a wheel outside the packages, their metadata and share/."""
    shared = ("nsqcy-*.data/data/share/nsqcy/*", "nsqcy-*.data/data/share/man/man1/*")
    places = ("nsqcy/*", "pyspark_nsq/*", "nsqcy-*.dist-info/*", *shared)
    return {
        name
        for name in names
        if UNWANTED.search(name) or not any(fnmatch(name, place) for place in places)
    }
