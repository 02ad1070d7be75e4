"""Imports follow the order of tests/support/package_order.py and docs/ARCHITECTURE.md."""

import subprocess
import sys
from collections.abc import Collection
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from support.package_order import (
    CEXT,
    MODULES,
    NSQD_RANK,
    RANK,
    ROOT,
    cython_imports,
    imports,
    included,
    ours,
    package,
    python_imports,
    sources,
)

# Tests drive these modules with bytes and their own clock, so the modules may not use real sockets
# or clocks. An entry is a module or a whole package.
WORLD = {"gevent", "socket", "select", "selectors", "asyncio", "ssl", "sys/socket.h"}
PURE = ["base", "broker", "copies", "ipc", "protocol", "storage", "server.publisher"]
PURE += [
    f"client.{name}"
    for name in ("codec", "connection", "consumer", "core", "flow", "flow_across_topics")
]
PURE += [f"client.{name}" for name in ("producer",)]
PURE += [f"nsqlookupd.{name}" for name in ("protocol", "registry")]
PURE += [f"nsqadmin.{name}" for name in ("actions", "auth", "html", "requests", "views")]
PURE += [f"nsqadmin.{name}" for name in ("api.copies_json", "api.stats_json")]
PURE += [f"nsqadmin.cluster.{name}" for name in ("answers", "copies", "nodes")]
PURE += [f"nsqadmin.{name}" for name in ("history.rates", "history.store")]
PURE += [f"users.{name}" for name in ("failures", "file", "hashes", "user")]
PURE += [f"capacity.{name}" for name in ("figure", "measured", "model", "report")]
PURE += [f"doctor.{name}" for name in ("checks", "cluster", "facts", "host", "redact", "report")]
PURE += ["doctor.topics"]
PURE += [f"tools.{name}" for name in ("destinations", "json_filter", "message_splitter", "status")]
PURE += ["tools.throttle"]
PURE += [f"tools.files.{name}" for name in ("codecs", "note_encoding", "output_file", "writer")]
# These modules use timestamps of log files, durations of syncs, and dates of given times.
WITH_CLOCKS = {"storage.io", "storage.segment_files", "nsqadmin.html.formatting"}
CLOCKS = {"time", "datetime", "time.h"}


def breaks(module: str, imported: set[str]) -> list[str]:
    here = package(module)
    return [
        f"{module} imports {other}"
        for other in sorted(ours(imported) - {module})
        if package(other) != here and RANK[package(other)] >= RANK[here]
    ]


def test_every_module_has_its_place() -> None:
    assert {package(module) for module in MODULES} == RANK.keys()


def test_imports_go_one_way() -> None:
    assert [each for name, path in sources() for each in breaks(name, imports(path))] == []


def breaks_in_nsqd(module: str, imported: set[str]) -> list[str]:
    here = module.split(".")[1]
    return [
        f"{module} imports {other}"
        for other in sorted(ours(imported))
        for there in [other.partition(".")[2].partition(".")[0]]
        if other.startswith("nsqd.") and there != here and NSQD_RANK[there] >= NSQD_RANK[here]
    ]


def test_imports_in_nsqd_go_one_way() -> None:
    found = [
        broken
        for name, path in sources()
        if name.startswith("nsqd.")
        for broken in breaks_in_nsqd(name, python_imports(path.read_text(), types=False))
    ]
    assert found == []


def test_the_checker_sees_an_upward_import_in_nsqd() -> None:
    text = "from nsqcy.nsqd.worker.engine import Engine\n"
    only_a_type = f"if TYPE_CHECKING:\n    {text}"
    assert breaks_in_nsqd("nsqd.process_messages.to_worker", python_imports(text, types=False))
    assert breaks_in_nsqd("nsqd.master.workers", python_imports(text, types=False))
    assert not breaks_in_nsqd("nsqd.worker.main", python_imports(text, types=False))
    assert not breaks_in_nsqd(
        "nsqd.process_messages.to_worker", python_imports(only_a_type, types=False)
    )


def test_the_checker_sees_an_upward_import() -> None:
    assert breaks("storage.core", cython_imports("from nsqcy.broker.core cimport Topic\n"))
    assert breaks("base.core", cython_imports("    from nsqcy.ipc cimport core\n"))
    assert breaks("process.spawn", python_imports("from nsqcy.nsqd import master"))
    assert breaks("config", python_imports("import nsqcy.config.loader, nsqcy.nsqd.options"))
    assert breaks("nsqlookupd.main", python_imports("from nsqcy.nsqd import activation"))
    assert not breaks("nsqd.main", python_imports("from nsqcy.nsqd import activation"))


def test_spark_stands_alone() -> None:
    """The source runs on machines without the rest of nsqcy. Daemons must not need the source's
    dependencies."""
    inside = {name: imports(path) for name, path in sources() if package(name) == "spark"}
    shared = {name: imports(path) for name, path in sources() if package(name) == "options"}
    outside = {
        name: imports(path)
        for name, path in sources()
        if package(name) not in ("spark", "pipeline")
    }
    for name, found in inside.items():
        theirs = {each for each in ours(found) if package(each) not in ("spark", "options")}
        assert theirs <= {"nsqcy", "base", "base.core"}, f"{name}: {theirs}"
    for name, found in shared.items():
        assert {package(each) for each in ours(found)} <= {"options"}, name
    heavy = {"pyspark", "pyarrow", "pyspark_nsq"}
    for name, found in outside.items():
        assert not {each for each in ours(found) if package(each) == "spark"}, name
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


@pytest.mark.slow
def test_nsqcy_runs_where_spark_is_not_installed() -> None:
    """All modules except the source and the sink can be imported, and PySpark's lookup of
    `pyspark_nsq` finds nothing instead of failing."""
    names = [
        f"nsqcy.{name}"
        for name, path in sources()
        if path.suffix == ".py" and package(name) not in ("spark", "nsqcy", "__main__")
    ]
    subprocess.run([sys.executable, "-c", WITHOUT_SPARK, *names], check=True, timeout=60)


def test_only_tests_use_their_modules() -> None:
    names = ("io_faults", "memory_faults", "state_probe")
    only = {f"nsqcy.storage.{name}" for name in names}
    assert [name for name, path in sources() if only & set(imports(path))] == []


def test_no_circles() -> None:
    graph: dict[str, set[str]] = {}
    for name, path in sources():
        graph.setdefault(name, set()).update(ours(imports(path)) - {name, "nsqcy"})
    TopologicalSorter(graph).prepare()


def reached(entry: str, besides: Collection[str] = ()) -> set[str]:
    """Return the imports of the files in an entry of PURE, and of those that include them."""
    files = {
        path
        for _, path in sources()
        for name in [own_name(path)]
        if f"{name}.".startswith(f"{entry}.") and name not in besides
    }
    assert files, entry
    files |= {included()[path] for path in files & included().keys()}
    return {each for path in files for each in imports(path)}


def own_name(path: Path) -> str:
    """Return the name that the module of this file would have if no other file included it."""
    folder = CEXT if CEXT in path.parents else ROOT / "nsqcy"
    return ".".join(path.relative_to(folder).with_suffix("").parts)


@pytest.mark.parametrize("entry", PURE)
def test_the_core_is_pure(entry: str) -> None:
    found = reached(entry)
    assert not {each.partition(".h")[0].split(".")[0] for each in found} & WORLD
    assert not found & WORLD


@pytest.mark.parametrize("entry", PURE)
def test_time_is_data(entry: str) -> None:
    assert not reached(entry, besides=WITH_CLOCKS) & CLOCKS


@pytest.mark.parametrize("daemon", ["nsqd", "nsqlookupd", "nsqadmin"])
def test_daemons_listen_before_anything_heavy_is_imported(daemon: str) -> None:
    code = f"import sys, nsqcy.{daemon}.main; sys.exit('gevent' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_a_worker_without_a_file_of_users_imports_nothing_of_them() -> None:
    code = "import sys, nsqcy.nsqd.worker.engine; sys.exit('nsqcy.users' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
