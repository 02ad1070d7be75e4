"""The options that `nsqcy up` passes to its daemons, and how it reads their output."""

import socket
import subprocess
import time
from pathlib import Path

import pytest

from nsqcy.cli import up
from nsqcy.errors import UsageError
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


def test_the_welcome_shows_what_can_be_typed() -> None:
    lookupd = {"TCP": "0.0.0.0:4160", "HTTP": "0.0.0.0:4161"}
    text = up.welcome({"TCP": "[::]:1", "HTTP": "[::]:2"}, lookupd, "data", "http://[::1]:3/")
    assert "nsqd:       TCP on [::]:1, HTTP on [::]:2, data in data\n" in text
    assert "'http://[::1]:2/pub?topic=greetings'" in text
    assert "'http://127.0.0.1:4161/lookup?topic=greetings'" in text
    assert "nsqadmin:   http://[::1]:3/\n" in text
    assert "nsqadmin" not in up.welcome({"TCP": "127.0.0.1:1"}, lookupd, "", "")
    assert "curl" not in up.welcome({"TCP": "127.0.0.1:1"}, lookupd, "", "")
    assert "curl" not in up.welcome({"TCP": "/a", "HTTP": "/b"}, lookupd, "", "")


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
