"""Findings of doctor for a host, from constructed facts."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from nsqcy.doctor import disk, host, report
from nsqcy.doctor.checks import Judged, run
from nsqcy.doctor.facts import Clock, ConfigFile, Disk, Host, Memory, Package, Port, Process, Wanted
from nsqcy.doctor.findings import NAMES_SHOWN, Finding, error, note, ok, several, warning

CHECKS = (*host.CHECKS, *disk.CHECKS)
GIB = 1 << 30
GOOD_DISK = Disk(
    "/data", "", "ext4", frozenset({"rw"}), 50 * GIB, 100 * GIB, 900, 1000, syncs=[0.001] * 5
)
GOOD = Host(
    Wanted("nsqd", workers=2),
    files_soft=1024,
    files_hard=1 << 20,
    clock=Clock(True, 0.1),
    disk=GOOD_DISK,
    memory=Memory(8 * GIB),
    cpus=4,
    somaxconn=4096,
    ports=[Port("tcp-address", "0.0.0.0:4150")],
    packages=[Package("gevent", "25.5", "26.9.0")],
)


def levels(check: Callable[[Host], Iterable[Finding]], facts: Host) -> list[str]:
    found = list(check(facts))
    assert all(each.advice for each in found if each.level in ("warning", "error"))
    return [each.level for each in found]


def text(check: Callable[[Host], Iterable[Finding]], facts: Host) -> str:
    return " | ".join(f"{each.text} {each.advice}" for each in check(facts))


def test_a_good_host_has_one_line_for_each_check() -> None:
    found = run(CHECKS, GOOD)
    assert [each.check for each in found] == [each.name for each in CHECKS if each.name != "config"]
    assert {each.finding.level for each in found} == {"ok"}
    assert report.exit_code(found) == 0


def test_unknown_facts_are_not_reported_as_problems() -> None:
    found = run(CHECKS, Host(Wanted("nsqlookupd"), files_hard=1 << 20, memory=Memory(GIB)))
    assert report.exit_code(found) == 0
    assert "data-path" not in {each.check for each in found}


@pytest.mark.parametrize(
    ("file", "level", "says"),
    [
        (ConfigFile("f", "nsqd", 3), "ok", "f: valid for nsqd; options set: 3"),
        (ConfigFile("f", "nsqd", warnings=["line 1 is ignored"]), "warning", "line 1 is ignored"),
        (ConfigFile("f", "nsqadmin", error="line 2: bad"), "error", "config sample nsqadmin"),
    ],
)
def test_config(file: ConfigFile, level: str, says: str) -> None:
    facts = replace(GOOD, config=file)
    assert levels(host.config, facts) == [level] and says in text(host.config, facts)


def test_libraries() -> None:
    def found(*packages: Package) -> list[str]:
        return levels(host.libraries, replace(GOOD, packages=packages))

    assert found(Package("a", "25.5", "25.5"), Package("b", "43", "43.0.1rc2")) == []
    assert found(Package("a", "2.10", "2.9.9")) == ["error"]
    assert found(Package("a", "2.10")) == ["error"]
    assert found() == ["note"]
    broken = replace(GOOD, broken_modules=["nsqcy._x cannot be imported"], python=(3, 10, 1))
    assert levels(host.libraries, broken) == ["error", "error"]


@pytest.mark.parametrize(
    ("hard", "level"), [(4095, "error"), (4096, "warning"), (16383, "warning"), (16384, "ok")]
)
def test_open_files(hard: int, level: str) -> None:
    assert levels(host.open_files, replace(GOOD, files_hard=hard)) == [level]


def test_open_files_of_a_daemon_that_runs_and_of_the_machine() -> None:
    def found(files: int, used: int) -> list[str]:
        port = Port("tcp-address", ":1", busy=True, process=Process(1, "nsqd", 1000, files))
        return levels(host.open_files, replace(GOOD, ports=[port], files_on_machine=(used, 1000)))

    assert found(799, 799) == ["ok"]
    assert found(800, 0) == ["ok", "error"]
    assert found(0, 800) == ["ok", "warning"]


def test_clock() -> None:
    assert levels(host.clock, replace(GOOD, clock=Clock(False, 0))) == ["warning"]
    assert levels(host.clock, replace(GOOD, clock=Clock())) == ["note"]
    assert "set back by 61 s" in text(host.clock, replace(GOOD, clock=Clock(True, -61.2)))
    assert "set forward" in text(host.clock, replace(GOOD, clock=Clock(True, 4000)))


def test_memory_and_cpus() -> None:
    wanted = Wanted("nsqd", workers=4, memory_bytes=3 * GIB)
    assert levels(host.memory, replace(GOOD, wanted=wanted)) == ["error"]
    assert levels(host.memory, replace(GOOD, memory=Memory(100 << 20))) == ["warning"]
    strict = Memory(GIB, overcommit=2, commit_limit=100, committed=80)
    assert levels(host.memory, replace(GOOD, memory=strict)) == ["ok", "warning"]
    group = replace(GOOD, memory=Memory(GIB, kills_groups=True))
    assert levels(host.memory, group) == ["ok", "note"]
    assert "memory.oom.group" in text(host.memory, group)
    assert levels(host.cpus, replace(GOOD, cpus=1)) == ["warning"]


def test_kernel() -> None:
    assert levels(host.kernel, replace(GOOD, somaxconn=128)) == ["warning"]
    assert levels(host.kernel, replace(GOOD, missing_calls=["eventfd"])) == ["error"]
    assert levels(host.kernel, replace(GOOD, somaxconn=None)) == []
    assert levels(host.kernel, replace(GOOD, memory=Memory(GIB, collapses=False))) == ["note"]


@pytest.mark.parametrize(
    ("port", "level"),
    [
        (Port("tcp-address", ":4150"), "ok"),
        (Port("tcp-address", "1.2.3.4:1", "cannot assign"), "error"),
        (Port("tcp-address", ":1", busy=True), "note"),
        (
            Port("tcp-address", ":1", busy=True, process=Process(7, "python -m nsqcy.nsqd.main")),
            "ok",
        ),
        (Port("tcp-address", ":1", busy=True, process=Process(7, "redis-server")), "error"),
    ],
)
def test_ports(port: Port, level: str) -> None:
    facts = replace(GOOD, ports=[port])
    assert levels(host.ports, facts) == [level]
    assert port.address in text(host.ports, facts)


# -- the disk


@pytest.mark.parametrize(
    ("kind", "durable", "level"),
    [
        ("xfs", True, "ok"),
        ("tmpfs", False, "warning"),
        ("tmpfs", True, "error"),
        ("nfs4", False, "warning"),
        ("overlay", False, "warning"),
        ("fuse.something", False, "note"),
        ("", False, "note"),
    ],
)
def test_file_systems(kind: str, durable: bool, level: str) -> None:
    facts = replace(
        GOOD, wanted=Wanted("nsqd", durable=durable), disk=replace(GOOD_DISK, kind=kind)
    )
    assert levels(disk.file_system, facts) == [level]


@pytest.mark.parametrize(
    ("option", "level"), [("ro", "error"), ("barrier=0", "error"), ("sync", "warning")]
)
def test_mount_options(option: str, level: str) -> None:
    facts = replace(GOOD, disk=replace(GOOD_DISK, mount_options=frozenset({option})))
    assert levels(disk.file_system, facts) == ["ok", level]


@pytest.mark.parametrize(
    ("free", "minimum", "level"),
    [
        (50 * GIB, 0, "ok"),
        (9 * GIB, 0, "warning"),
        (GIB // 2, 0, "error"),
        (50 * GIB, 60 * GIB, "error"),
    ],
)
def test_disk_space(free: int, minimum: int, level: str) -> None:
    facts = replace(
        GOOD,
        wanted=Wanted("nsqd", min_free_disk=minimum),
        disk=replace(GOOD_DISK, bytes_free=free),
    )
    assert levels(disk.disk_space, facts) == [level]


def test_inodes() -> None:
    few = replace(GOOD, disk=replace(GOOD_DISK, files_free=99))
    assert levels(disk.disk_space, few) == ["ok", "warning"]
    uncounted = replace(GOOD, disk=replace(GOOD_DISK, files_free=0, files_all=0))
    assert levels(disk.disk_space, uncounted) == ["ok"]


@pytest.mark.parametrize(("sync", "level"), [(0.01, "ok"), (0.05, "note"), (0.3, "warning")])
def test_disk_latency(sync: float, level: str) -> None:
    """One slow sync of five does not make a slow disk."""
    facts = replace(GOOD, disk=replace(GOOD_DISK, syncs=[sync, sync, 0.9, sync, sync]))
    assert levels(disk.disk_latency, facts) == [level]
    assert "at worst in 900 ms" in text(disk.disk_latency, facts)


def test_a_data_path_that_cannot_be_used() -> None:
    for one in (Disk("/x", "/x: no such file"), replace(GOOD_DISK, write_error="no", syncs=())):
        facts = replace(GOOD, disk=one)
        assert levels(disk.data_path, facts) == ["error"]
        assert report.exit_code(run(disk.CHECKS, facts)) == 1


# -- how findings are reported

FOUND = [
    Judged("a", ok("fine")),
    Judged("b", note("so it is")),
    Judged("c", warning("look", "do this")),
    Judged("d", error("bad\n\x1b[2Jnode", "do that")),
]


def test_lines() -> None:
    assert report.lines(FOUND).splitlines() == [
        "ok       a: fine",
        "note     b: so it is",
        "warning  c: look",
        "         -> do this",
        "error    d: bad  [2Jnode",
        "         -> do that",
    ]
    assert report.summary(FOUND) == "1 ok, 1 note, 1 warning, 1 error\n"
    assert [each.check for each in report.not_ok(FOUND)] == ["b", "c", "d"]


def test_only_a_problem_makes_the_exit_code() -> None:
    assert (report.exit_code(FOUND[:3]), report.exit_code(FOUND)) == (0, 1)


def test_many_names_are_one_line() -> None:
    assert several("ba") == "a, b"
    assert several(map(str, range(100, 101 + NAMES_SHOWN))).endswith(" and 1 more")
