"""The purpose of each inherited socket: by name, by address, by order."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqcy.errors import StartError
from nsqcy.nsqd.master.activation import assign
from nsqcy.process.systemd import Inherited

NAMES = ("tcp", "http", "https")


@pytest.fixture
def three() -> Iterator[list[socket.socket]]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in NAMES]
    yield sockets
    for sock in sockets:
        sock.close()


def port(sock: socket.socket) -> int:
    number: int = sock.getsockname()[1]
    return number


def kinds(found: list[socket.socket], names: list[str], **addresses: str) -> dict[str, int]:
    wanted = dict.fromkeys(NAMES, "") | addresses
    inherited = [Inherited(sock, name) for sock, name in zip(found, names, strict=True)]
    return {each.kind: found.index(each.sock) for each in assign(inherited, wanted)}


def test_by_name(three: list[socket.socket]) -> None:
    names = ["https", "tcp", "http"]
    assert kinds(three, names) == {"https": 0, "tcp": 1, "http": 2}


def test_by_address(three: list[socket.socket]) -> None:
    found = kinds(
        three,
        ["nsqd.socket"] * 3,
        tcp=f"0.0.0.0:{port(three[1])}",
        http=f"[::]:{port(three[2])}",
        https="127.0.0.1:https",
    )
    assert found == {"tcp": 1, "http": 2, "https": 0}


def test_by_order(three: list[socket.socket]) -> None:
    assert kinds(three[:2], ["", "x"], tcp=":1", http="/a", https=":3") == {"tcp": 0, "http": 1}
    assert kinds(three[:2], ["", ""], tcp=":1", https=":3") == {"tcp": 0, "https": 1}


def test_a_name_goes_before_an_address_and_that_before_the_order(
    three: list[socket.socket],
) -> None:
    found = kinds(three, ["", "", "tcp"], tcp=":1", http=":2", https=f":{port(three[0])}")
    assert found == {"tcp": 2, "https": 0, "http": 1}


def test_how_they_are_shown(tmp_path: Path) -> None:
    path = str(tmp_path / "tcp.sock")
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(path)
    inet = socket.create_server(("127.0.0.1", 0))
    tcp, http = assign([Inherited(unix, "x"), Inherited(inet, "http")], {"tcp": path, "http": ""})[
        ::-1
    ]
    assert (tcp.kind, tcp.text, tcp.port) == ("tcp", path, 0)
    assert (http.kind, http.text) == ("http", f"127.0.0.1:{port(inet)}")
    tcp.close()
    http.close()
    assert Path(path).exists()  # nsqd must not remove a path that it did not create


def test_both_families_in_one_socket_are_shown_as_the_wildcard_of_ipv4() -> None:
    try:
        sock = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    except (OSError, ValueError):
        pytest.skip("this machine has no IPv6")
    (listener,) = assign([Inherited(sock, "tcp")], {"tcp": ""})
    assert listener.text == f"0.0.0.0:{listener.port}"
    listener.close()


@pytest.mark.parametrize(
    ("names", "addresses", "reason"),
    [
        (["tcp", "tcp"], {}, "two sockets are named tcp"),
        (["tcp", "udp"], {}, r"unexpected 127.0.0.1:\d+ \(udp\)"),
        (["", ""], {"tcp": ":1"}, r"unexpected 127.0.0.1:\d+"),
    ],
)
def test_what_is_of_no_use_is_refused(
    three: list[socket.socket], names: list[str], addresses: dict[str, str], reason: str
) -> None:
    allowed = (
        r" \(allowed: one socket for each of tcp, http, https, identified by FileDescriptorName="
    )
    with pytest.raises(StartError, match=f"^failed to receive sockets - {reason}{allowed}"):
        kinds(three[:2], names, **addresses)
    assert [sock.fileno() for sock in three[:2]] == [-1, -1]
