"""Imports go one way. The table below is the order of docs/ARCHITECTURE.md."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# A module imports only from rows above its own. `name.` stands for a package: its modules may
# import each other, in no circle.
ROWS = [
    "nsqcy _debug _bytes _atomics _http _histogram errors findings names durations lines log"
    " log_events files journal late procfs self_connect",
    "_events _figures _headers metrics.",
    "_crc _heap _quantile _ids _quota _ring _io options process. listeners gotext gojson debug"
    " dead_letters named_cursors producers log_page write_failures",
    "_log _mesh config policies layers acceptor web. cluster.",
    "_store _log_probe daemon daemon_options starting users.",
    "_wire _packing _excerpt _listing",
    "_channel",
    "_client _compaction _moves _reads _snapshot",
    "_peek",
    "_topic",
    "_session",
    "_transport _publisher _metrics",
    "client.",
    "compat.",
    "nsqd. nsqlookupd. nsqadmin. tools.",
    "up doctor. capacity. testing. spark.",
    "pipeline.",
    "__main__",
]
RANK = {name: rank for rank, row in enumerate(ROWS) for name in row.split()}

# Driven by a test with bytes and a clock of its own; they may not reach for the real ones.
CORE = ["_channel", "_compaction", "_events", "_excerpt", "_headers", "_heap", "_ids"]
CORE += ["_io", "_listing", "_log", "_mesh", "_moves", "_packing", "_peek", "_publisher"]
CORE += ["_quantile", "_quota", "_reads", "_ring", "_session", "_snapshot", "_store"]
CORE += ["_topic", "_wire"]
WORLD = {"gevent", "socket", "select", "selectors", "asyncio", "ssl", "sys/socket.h"}
PURE = [*CORE, "_client"]
PURE += [f"client.{part}" for part in ("connection", "consumer", "core", "flow", "producer")]
PURE += ["nsqlookupd.registry", "nsqlookupd.protocol"]
PURE += [f"nsqadmin.{part}" for part in ("figures", "frame", "markup", "shapes", "versions")]
PURE += [
    f"nsqadmin.{part}" for part in ("node_views", "signs", "stream_views", "tables", "topic_views")
]
PURE += [f"nsqadmin.{part}" for part in ("drawing", "here", "plots")]
PURE += [f"nsqadmin.{part}" for part in ("history", "history_rates", "history_rings")]
PURE += [f"nsqadmin.{part}" for part in ("sessions",)]
PURE += [f"users.{part}" for part in ("failures", "file", "hashes", "user")]
PURE += [f"capacity.{part}" for part in ("figure", "measured", "model", "report")]
PURE += [f"doctor.{part}" for part in ("checks", "cluster", "facts", "host", "report", "topics")]
PURE += [f"nsqadmin.{part}" for part in ("answer_forms", "bodies", "saying", "peek_views")]
PURE += ["nsqadmin.subject_views"]
PURE += [f"nsqadmin.{part}" for part in ("policy_views", "seek_views", "node_action_views")]
PURE += [
    f"tools.{part}" for part in ("destinations", "json_filter", "pieces", "status", "throttle")
]
PURE += [f"tools.files.{part}" for part in ("codecs", "file", "notes", "writer")]
CLOCKLESS = sorted(set(PURE) - {"_io", "_log"})
CLOCKS = {"time", "datetime", "time.h"}

CIMPORT = re.compile(r"^ *from +([\w.]+) +(?:c?import) |^ *c?import +([\w.]+)", re.MULTILINE)
FROM_PACKAGE = re.compile(r"^ *from +nsqcy +c?import +(.+)$", re.MULTILINE)
HEADER = re.compile(r"^ *cdef extern from [\"<]([\w./]+)", re.MULTILINE)


def sources() -> Iterator[tuple[str, Path]]:
    """Every module's name below nsqcy, with each of its files."""
    for path in sorted((ROOT / "nsqcy").rglob("*.py")):
        parts = path.relative_to(ROOT / "nsqcy").with_suffix("").parts
        yield ".".join(part for part in parts if part != "__init__") or "nsqcy", path
    for path in sorted((ROOT / "cext" / "nsqcy").glob("_[a-z]*.p[yx][xd]")):
        yield path.stem, path


def python_imports(text: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def cython_imports(text: str) -> set[str]:
    found = {one or other for one, other in CIMPORT.findall(text)}
    for names in FROM_PACKAGE.findall(text):
        found |= {f"nsqcy.{name.strip()}" for name in names.split(",")}
    return found | set(HEADER.findall(text))


def imports(path: Path) -> set[str]:
    read = python_imports if path.suffix == ".py" else cython_imports
    return read(path.read_text())


MODULES = {name for name, _ in sources()}


def ours(imported: set[str]) -> set[str]:
    """Those that are modules of nsqcy, by their names below it."""
    names = {name.removeprefix("nsqcy.") for name in imported if name.startswith("nsqcy")}
    return names & (MODULES | {"_debug", "_bytes", "_atomics"})


def place(module: str) -> str:
    """The entry of the table a module belongs to."""
    package, dot, _ = f"{module}.".partition(".") if module + "." in RANK else module.partition(".")
    return package + dot


def breaks(module: str, imported: set[str]) -> list[str]:
    here = place(module)
    return [
        f"{module} imports {other}"
        for other in sorted(ours(imported) - {module})
        if RANK[place(other)] >= RANK[here] and not (here == place(other) and here.endswith("."))
    ]


def test_every_module_has_its_place() -> None:
    assert {place(module) for module in MODULES} <= RANK.keys()


def test_imports_go_one_way() -> None:
    assert [each for name, path in sources() for each in breaks(name, imports(path))] == []


def test_the_checker_sees_an_upward_import() -> None:
    assert breaks("_store", cython_imports("from nsqcy._topic cimport Topic\n"))
    assert breaks("_heap", cython_imports("    from nsqcy cimport _bytes, _ids\n"))
    assert breaks("process.spawn", python_imports("from nsqcy.nsqd import master"))
    assert breaks("config", python_imports("import nsqcy.config, nsqcy.nsqd.options"))
    assert breaks("nsqlookupd.main", python_imports("from nsqcy.nsqd import activation"))
    assert not breaks("nsqd.main", python_imports("from nsqcy.nsqd import activation"))


def test_spark_stands_alone() -> None:
    """It goes to machines that have no nsqcy, and a daemon must not need what it needs."""
    inside = {name: imports(path) for name, path in sources() if place(name) == "spark."}
    outside = {
        name: imports(path)
        for name, path in sources()
        if place(name) not in ("spark.", "pipeline.")
    }
    for name, found in inside.items():
        theirs = {each for each in ours(found) if place(each) != "spark."} - {"nsqcy"}
        assert theirs <= {"_crc"}, f"{name}: {theirs}"
    heavy = {"pyspark", "pyarrow", "pyspark_nsq"}
    for name, found in outside.items():
        assert not {each for each in ours(found) if place(each) == "spark."}, name
        assert not {each.partition(".")[0] for each in found} & heavy, name


WITHOUT_SPARK = """
import importlib, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "pyarrow", "py4j"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
for name in sys.argv[1:]:
    importlib.import_module(name)
import nsqcy.spark, pyspark_nsq
assert not hasattr(pyspark_nsq, "DefaultSource")
"""


def test_nsqcy_runs_where_spark_is_not_installed() -> None:
    """Everything but the source and sink themselves can be imported, and PySpark's look at
    `pyspark_nsq` finds nothing instead of failing."""
    names = [
        f"nsqcy.{name}"
        for name, path in sources()
        if path.suffix == ".py" and place(name) not in ("spark.", "nsqcy", "__main__")
    ]
    subprocess.run([sys.executable, "-c", WITHOUT_SPARK, *names], check=True, timeout=60)


def test_no_circles() -> None:
    graph: dict[str, set[str]] = {}
    for name, path in sources():
        graph.setdefault(name, set()).update(ours(imports(path)) - {name, "nsqcy"})
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("module", PURE)
def test_the_core_is_pure(module: str) -> None:
    found = set().union(*(imports(path) for name, path in sources() if name == module))
    assert not {each.partition(".h")[0].split(".")[0] for each in found} & WORLD
    assert not found & WORLD


@pytest.mark.parametrize("module", CLOCKLESS)
def test_time_is_data(module: str) -> None:
    found = set().union(*(imports(path) for name, path in sources() if name == module))
    assert not found & CLOCKS


@pytest.mark.parametrize("daemon", ["nsqd", "nsqlookupd", "nsqadmin"])
def test_daemons_listen_before_anything_heavy_is_imported(daemon: str) -> None:
    code = f"import sys, nsqcy.{daemon}.main; sys.exit('gevent' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_a_worker_without_a_file_of_users_imports_nothing_of_them() -> None:
    code = "import sys, nsqcy.nsqd.engine; sys.exit('nsqcy.users' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
