"""The options that `nsqcy up` passes to its daemons, and how it reads their output."""

import socket
import subprocess
import time
from pathlib import Path

import pytest

from nsqcy.cli import demo_cluster, up
from nsqcy.errors import StartError, UsageError
from nsqcy.process.children import Child, how_it_ended


def plans(*words: str) -> tuple[up.Plan, up.Plan, up.Plan]:
    lookupd, nsqd, admin = (up.Plan(daemon, found) for daemon, found in up.split(words).items())
    return lookupd, nsqd, admin


def test_defaults() -> None:
    lookupd, nsqd, admin = plans()
    assert lookupd.flags() == [
        "--tcp-address=127.0.0.1:4160",
        "--http-address=127.0.0.1:4161",
        "--broadcast-address=127.0.0.1",
    ]
    assert nsqd.flags("127.0.0.1:4160") == [
        "--tcp-address=127.0.0.1:4150",
        "--http-address=127.0.0.1:4151",
        "--https-address=127.0.0.1:4152",
        "--data-path=data",
        "--broadcast-address=127.0.0.1",
        "--lookupd-tcp-address=127.0.0.1:4160",
    ]
    assert admin.flags("127.0.0.1:4161") == [
        "--http-address=127.0.0.1:4171",
        "--lookupd-http-address=127.0.0.1:4161",
    ]


@pytest.mark.parametrize(
    "words, lookupd, nsqd, admin",
    [
        (["-tcp-address", "1.2.3.4:1"], [], ["-tcp-address", "1.2.3.4:1"], []),
        (["--snappy", "--verbose"], [], ["--snappy", "--verbose"], []),
        (["--nsqlookupd-tcp-address=:1"], ["--tcp-address=:1"], [], []),
        (["-nsqlookupd-log-prefix", "-x", "-snappy"], ["-log-prefix", "-x"], ["-snappy"], []),
        (["--nsqlookupd-verbose", "--snappy"], ["--verbose"], ["--snappy"], []),
        (["--nsqadmin-base-path", "/nsq", "-snappy"], [], ["-snappy"], ["--base-path", "/nsq"]),
    ],
)
def test_whose_flag_it_is(
    words: list[str], lookupd: list[str], nsqd: list[str], admin: list[str]
) -> None:
    assert up.split(words) == {"nsqlookupd": lookupd, "nsqd": nsqd, "nsqadmin": admin}


def test_without_nsqadmin() -> None:
    words = ["--no-nsqadmin", "--snappy"]
    assert up.split(words) == {"nsqlookupd": [], "nsqd": ["--snappy"]}
    with pytest.raises(UsageError, match="--nsqadmin-base-path and --no-nsqadmin cannot be comb"):
        up.split([*words, "--nsqadmin-base-path=/nsq"])


def test_nsqadmin_asks_whom_it_is_told(tmp_path: Path) -> None:
    *_, admin = plans("--nsqadmin-lookupd-http-address=a:1")
    assert admin.flags("b:1")[1:] == ["--lookupd-http-address=b:1", "--lookupd-http-address=a:1"]
    *_, admin = plans("--nsqadmin-nsqd-http-address=a:1")
    assert admin.flags("b:1")[1:] == ["--nsqd-http-address=a:1"]
    file = tmp_path / "nsqadmin.ini"
    file.write_text("[nsqadmin]\nlookupd_http_address = a:1\n")
    *_, admin = plans(f"--nsqadmin-config={file}")
    found = [flag for flag in admin.flags("b:1") if flag.startswith("--lookupd")]
    assert found == ["--lookupd-http-address=b:1", "--lookupd-http-address=a:1"]


@pytest.mark.parametrize(
    "address, broadcast",
    [
        ("10.0.0.7:4150", ["10.0.0.7"]),
        ("here.example:4150", ["here.example"]),
        ("[::1]:4150", ["::1"]),
        ("0.0.0.0:4150", []),
        ("[::]:4150", []),
        (":4150", []),
        ("/run/nsqd.sock", []),
    ],
)
def test_others_are_told_where_it_listens(address: str, broadcast: list[str]) -> None:
    _, nsqd, _ = plans(f"--tcp-address={address}")
    told = [flag.partition("=")[2] for flag in nsqd.flags() if flag.startswith("--broadcast-a")]
    assert told == broadcast


def test_what_is_given_stays(tmp_path: Path) -> None:
    file = tmp_path / "nsqd.ini"
    file.write_text("[nsqd]\nhttp_address =\ndata_path =\nbroadcast_address = me\n")
    _, nsqd, _ = plans(f"--config={file}", "--lookupd-tcp-address=a:1")
    assert nsqd["data_path"] == ""
    assert nsqd.flags("b:1") == [
        "--tcp-address=127.0.0.1:4150",
        "--https-address=127.0.0.1:4152",
        "--lookupd-tcp-address=b:1",
        f"--config={file}",
        "--lookupd-tcp-address=a:1",
    ]


def test_lookupds_of_the_file_are_not_replaced(tmp_path: Path) -> None:
    file = tmp_path / "nsqd.ini"
    file.write_text("[nsqd]\nlookupd_tcp_address = a:1, a:2\n")
    _, nsqd, _ = plans(f"--config={file}")
    found = [flag for flag in nsqd.flags("b:1") if flag.startswith("--lookupd")]
    assert found == [f"--lookupd-tcp-address={each}" for each in ("b:1", "a:1", "a:2")]


def test_defaults_do_not_replace_what_is_given() -> None:
    _, nsqd, _ = plans("--log-level=info")
    assert not nsqd.default("log_level", "warn") and nsqd.default("data_path", "/d")
    assert nsqd["data_path"] == "/d"
    flags = nsqd.flags()
    assert "--data-path=/d" in flags and "--data-path=data" not in flags
    assert "--log-level=info" in flags and "--log-level=warn" not in flags


# -- several nsqds


@pytest.mark.parametrize(
    ("words", "count", "rest"),
    [
        ([], 1, []),
        (["--nodes=3", "--snappy"], 3, ["--snappy"]),
        (["-snappy", "-nodes", "2"], 2, ["-snappy"]),
        (["--nodes=1"], 1, []),
        (["nodes"], 1, ["nodes"]),
    ],
)
def test_the_number_of_nodes(words: list[str], count: int, rest: list[str]) -> None:
    assert demo_cluster.taken(words) == (count, rest)


@pytest.fixture
def etcd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "etcd"
    program.touch(mode=0o700)
    monkeypatch.setenv("PATH", str(program.parent))


def node_plans(*words: str, count: int = 3) -> tuple[demo_cluster.Shared, list[up.Plan]]:
    plan = up.Plan("nsqd", list(words))
    shared = plan.shared(count)
    return shared, [plan.node(index, shared) for index in range(count)]


@pytest.mark.usefixtures("etcd")
def test_nodes_differ_in_ports_and_data() -> None:
    shared, plans = node_plans("--data-path=d", "--http-address=:7001", "--node-id=1023")
    assert shared.etcd is not None
    assert [plan.name for plan in plans] == ["node0", "node1", "node2"]
    assert [plan["data_path"] for plan in plans] == ["d/node0", "d/node1", "d/node2"]
    assert [plan["tcp_address"] for plan in plans] == [f"127.0.0.1:4{each}50" for each in (1, 2, 3)]
    assert plans[1].flags("l:1") == [
        "--tcp-address=127.0.0.1:4150",
        "--https-address=127.0.0.1:4152",
        "--broadcast-address=127.0.0.1",
        "--workers=1",
        "--copies-address=127.0.0.1:0",
        f"--etcd-endpoints={shared.etcd.url}",
        "--copies-secret-file=d/copies.secret",
        "--config=d/cluster.ini",
        "--lookupd-tcp-address=l:1",
        "--data-path=d",
        "--http-address=:7001",
        "--node-id=1023",
        "--tcp-address=127.0.0.1:4250",
        "--http-address=:7101",
        "--https-address=127.0.0.1:4252",
        "--data-path=d/node1",
        "--node-id=0",
        "--log-prefix=[node1] ",
    ]
    _, plans = node_plans("--tcp-address=127.0.0.1:0", "--http-address=")
    assert plans[1]["tcp_address"] == "127.0.0.1:0"
    assert "--http-address=" in plans[1].flags()


@pytest.mark.usefixtures("etcd")
@pytest.mark.parametrize("address", ["/run/nsqd.sock", "127.0.0.1:http", "127.0.0.1:65400"])
def test_nodes_need_ports_in_a_row(address: str) -> None:
    with pytest.raises(UsageError, match="--tcp-address"):
        node_plans(f"--tcp-address={address}")


@pytest.mark.usefixtures("etcd")
@pytest.mark.parametrize(("count", "copies"), [(2, 2), (3, 3), (5, 3)])
def test_the_files_that_nodes_share(tmp_path: Path, count: int, copies: int) -> None:
    shared, _ = node_plans(f"--data-path={tmp_path}", count=count)
    shared.write()
    assert f"[topic *]\ncopies = {copies}\n" in (tmp_path / "cluster.ini").read_text()
    secret = (tmp_path / "copies.secret").read_text()
    shared.write()
    assert (tmp_path / "copies.secret").read_text() == secret
    assert (tmp_path / "etcd").stat().st_mode & 0o777 == 0o700


def test_nodes_use_a_given_etcd_and_file(tmp_path: Path) -> None:
    file = tmp_path / "nsqd.ini"
    file.write_text("[nsqd]\netcd_endpoints = http://e:1\nworkers = 2\n[topic t]\ncopies = 2\n")
    shared, plans = node_plans(f"--config={file}")
    assert shared.etcd is None
    given = [flag.partition("=")[0] for flag in plans[0].flags()]
    assert given.count("--config") == 1
    assert "--etcd-endpoints" not in given and "--workers" not in given
    file.write_text("[nsqd]\netcd_endpoints = http://e:1\n[topic t]\nretention_time = 1h\n")
    with pytest.raises(StartError, match="has no topics with copies"):
        node_plans(f"--config={file}")


def test_nodes_need_etcd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StartError, match="--nodes needs etcd, which is not in the PATH: install"):
        node_plans()


@pytest.mark.slow
def test_only_the_child_itself_says_that_it_is_ready() -> None:
    words = ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"]
    child = Child("nsqlookupd", "nsqcy.nsqlookupd.main", words, stderr=subprocess.DEVNULL)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
            other.sendto(b"READY=1\nSTATUS=serving TCP 6.6.6.6:1", child._sock.getsockname())
        child.hear(10.0)
        assert "6.6.6.6:1" not in child.addresses.values()
        deadline = time.monotonic() + 30
        while not child.ready:
            assert time.monotonic() < deadline
            child.hear(1.0)
        assert child.addresses["TCP"].startswith("127.0.0.1:")
        child.process.terminate()
        assert how_it_ended(child.process.wait(30)) == "exited with status 0"
    finally:
        child.process.kill()
        child.process.wait()
        child.close()


def test_how_it_ended() -> None:
    assert how_it_ended(3) == "exited with status 3"
    assert how_it_ended(-9) == "was killed by SIGKILL"
    assert how_it_ended(-99) == "was killed by signal 99"
