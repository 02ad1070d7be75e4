"""The packages of nsqcy in their order, and the imports of each module.

tests/meta/test_architecture.py enforces the order; tests/quick.py uses it to find the tests that a
change reaches.
"""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

# A package imports only from rows above its own. Its modules may import each other, but without
# cycles.
ROWS = [
    "nsqcy commit errors names base logging metrics options util",
    "formats",
    "cluster config copies ipc net storage",
    "channels etcd process",
    "broker",
    "protocol",
    "client server",
    "aio compat http integrations",
    "daemon users",
    "nsqadmin nsqd nsqlookupd tools",
    "capacity cli doctor spark testing",
    "pipeline",
    "__main__",
]
RANK = {name: rank for rank, row in enumerate(ROWS) for name in row.split()}

# The order within nsqd. Messages import the parts of a process that they use, but only as types.
NSQD_ROWS = [
    "address_warnings boot_memory exit_report known_topics process_calls reading_marks "
    "upgrade_steps",
    "options",
    "process_messages tls",
    "auth lookup stats",
    "copies",
    "http",
    "master worker",
    "data",
    "main",
]
NSQD_RANK = {name: rank for rank, row in enumerate(NSQD_ROWS) for name in row.split()}

CEXT = ROOT / "cext" / "nsqcy"
INCLUDE = re.compile('^include "(.+)"', re.MULTILINE)
CIMPORT = re.compile(r"^ *from +([\w.]+) +(?:c?import) |^ *c?import +([\w.]+)", re.MULTILINE)
FROM_PACKAGE = re.compile(r"^ *from +(nsqcy[\w.]*) +c?import +(?!\()(.+)$", re.MULTILINE)
HEADER = re.compile(r"^ *cdef extern from [\"<]([\w./]+)", re.MULTILINE)


@functools.cache
def included() -> dict[Path, Path]:
    """Return the files of cext that another file includes, with that file."""
    return {
        path.parent / name: path
        for path in CEXT.rglob("*.pyx")
        for name in INCLUDE.findall(path.read_text())
    }


def sources() -> Iterator[tuple[str, Path]]:
    """Yield the name of every module below nsqcy, with each of its files."""
    for path in sorted((ROOT / "nsqcy").rglob("*.py")):
        parts = path.relative_to(ROOT / "nsqcy").with_suffix("").parts
        yield ".".join(part for part in parts if part != "__init__") or "nsqcy", path
    for path in sorted(CEXT.rglob("[a-z]*.p[yx][xd]")):
        yield compiled_module(path), path


def compiled_module(path: Path) -> str:
    """Return the module that a file of cext belongs to."""
    return ".".join(included().get(path, path).relative_to(CEXT).with_suffix("").parts)


def python_imports(text: str, types: bool = True) -> set[str]:
    """types: whether to include imports for type checkers only."""
    tree = ast.parse(text)
    if not types:
        tree = _WithoutTypes().visit(tree)
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports must be absolute"
            assert node.module is not None
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


class _WithoutTypes(ast.NodeTransformer):
    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        is_types = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        return node.orelse if is_types else node


def cython_imports(text: str) -> set[str]:
    found = {one or other for one, other in CIMPORT.findall(text)}
    for package, names in FROM_PACKAGE.findall(text):
        found |= {f"{package}.{name.split()[0]}" for name in names.split(",")}
    return found | set(HEADER.findall(text))


@functools.cache
def imports(path: Path) -> set[str]:
    read = python_imports if path.suffix == ".py" else cython_imports
    return read(path.read_text())


MODULES = {name for name, _ in sources()}


def ours(imported: set[str]) -> set[str]:
    """Return the names that are modules of nsqcy, relative to nsqcy."""
    names = {name.removeprefix("nsqcy.") for name in imported if name.startswith("nsqcy")}
    return names & MODULES


def package(module: str) -> str:
    """Return the entry of the table that a module belongs to."""
    return module.partition(".")[0]
