"""Addresses: how they are parsed, bound and shown."""

import errno
import os
import socket
import threading

import pytest

from nsqcy.errors import StartError
from nsqcy.net import listeners
from nsqcy.net.listeners import Address, bind, parse, show


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:4150", Address("127.0.0.1", "4150")),
        (":4150", Address("", "4150")),
        ("localhost:", Address("localhost", "")),
        ("[::1]:0", Address("::1", "0")),
        ("/tmp/nsqd.sock", Address(path="/tmp/nsqd.sock")),
        ("nsqd", Address(path="nsqd")),
        ("::1:4150", Address(path="::1:4150")),
        ("[::1]", Address(path="[::1]")),
        ("[::1:4150", Address(path="[::1:4150")),
        ("a]:1", Address(path="a]:1")),
        ("", Address(path="")),
        ("/tmp/a:b", Address("/tmp/a", "b")),
    ],
)
def test_addresses(text, address):
    assert parse(text) == address


@pytest.mark.parametrize(
    ("where", "text"),
    [
        (("127.0.0.1", 5), "127.0.0.1:5"),
        (("::ffff:10.0.0.1", 5, 0, 0), "10.0.0.1:5"),
        (("::1", 5, 0, 0), "[::1]:5"),
        (("::", 5, 0, 0), "[::]:5"),
        ("/tmp/x", "/tmp/x"),
        ("", "@"),
        (None, "@"),
    ],
)
def test_how_addresses_are_shown(where, text):
    assert show(where) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [("127.0.0.1:0", "127.0.0.1"), ("0.0.0.0:0", "0.0.0.0"), (":0", "0.0.0.0")],
)
def test_ipv4_is_shown_as_a_literal_with_the_real_port(text, shown):
    listener = bind(text, "tcp")
    try:
        assert listener.port > 0
        assert listener.text == f"{shown}:{listener.port}"
        socket.create_connection(("127.0.0.1", listener.port)).close()
    finally:
        listener.close()


def test_a_machine_without_ipv6(monkeypatch):
    real = listeners._socket

    def without(family):
        if family == socket.AF_INET6:
            raise OSError(97, "Address family not supported by protocol")
        return real(family)

    monkeypatch.setattr(listeners, "_socket", without)
    listener = bind("0.0.0.0:0", "tcp")
    assert listener.text == f"0.0.0.0:{listener.port}"
    assert listener.sock.family == socket.AF_INET
    listener.close()


def failure(text):
    with pytest.raises(StartError) as caught:
        bind(text, "tcp")
    prefix = f"failed to instantiate nsqd - listen ({text}) failed - "
    assert str(caught.value).startswith(prefix)
    return str(caught.value).removeprefix(prefix)


IN_USE = "bind: address already in use; stop the process that uses it, or change --tcp-address"


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_port_in_use(host):
    with socket.socket() as taken:
        taken.bind((host, 0))
        taken.listen()
        text = f"{host}:{taken.getsockname()[1]}"
        assert failure(text) == f"listen tcp {text}: {IN_USE}"


def test_a_port_in_use_of_a_name():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert failure(f"localhost:{taken.getsockname()[1]}").endswith(IN_USE)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("127.0.0.1:99999", "listen tcp: address 99999: invalid port"),
        ("127.0.0.1:nope", "listen tcp: lookup tcp/nope: unknown port"),
        ("nobody.invalid:0", "listen tcp: lookup nobody.invalid: no such host"),
        (
            "192.0.2.1:0",
            "listen tcp 192.0.2.1:0: bind: cannot assign requested address;"
            " no network interface of this machine has the address",
        ),
        ("/no/such/dir", "listen unix /no/such/dir: bind: no such file or directory"),
    ],
)
def test_what_cannot_be_bound(text, reason):
    assert failure(text) == reason


def test_a_path_too_long():
    assert "path too long" in failure("/tmp/" + "x" * 200)


def test_closing_takes_the_file_away_and_only_the_socket(tmp_path):
    path = str(tmp_path / "s")
    listener = bind(path, "http")
    assert (listener.text, listener.port) == (path, 0)
    assert os.path.exists(path)
    listener.close()
    assert not os.path.exists(path)
    listener.close()
    replaced = bind(path, "http")
    os.unlink(path)
    (tmp_path / "s").write_text("a file of somebody else")
    replaced.close()
    assert os.path.exists(path)


def leave_behind(path):
    """Leave a socket file behind, as a killed daemon does."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)
        sock.listen()


def reach(path):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)


def test_a_socket_file_without_a_listener_is_taken_over(tmp_path):
    path = str(tmp_path / "s")
    leave_behind(path)
    listener = bind(path, "tcp")
    reach(path)
    assert os.listdir(tmp_path) == ["s"]
    listener.close()
    assert os.listdir(tmp_path) == []


def test_a_socket_file_with_a_listener_is_left_alone(tmp_path):
    path = str(tmp_path / "s")
    owner = bind(path, "tcp")
    assert failure(path) == f"listen unix {path}: {IN_USE}"
    reach(path)
    owner.close()


def test_a_listener_with_a_full_backlog_is_a_listener(tmp_path):
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as owner:
        owner.bind(path)
        owner.listen(0)
        waiting = []
        with pytest.raises(BlockingIOError):
            while True:
                waiting.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                waiting[-1].setblocking(False)
                waiting[-1].connect(path)
        assert failure(path).endswith(IN_USE)
        for each in waiting:
            each.close()
        assert os.path.exists(path)


def test_a_socket_of_another_type_is_left_alone(tmp_path):
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as owner:
        owner.bind(path)
        assert failure(path).endswith(IN_USE)
        assert os.path.exists(path)


@pytest.mark.parametrize("make", ["file", "folder", "link"])
def test_what_is_no_socket_is_left_alone(make, tmp_path):
    path = str(tmp_path / "s")
    if make == "file":
        (tmp_path / "s").write_text("kept")
    elif make == "folder":
        os.mkdir(path)
    else:
        leave_behind(str(tmp_path / "other"))
        os.symlink("other", path)
    before = sorted(os.listdir(tmp_path))
    assert failure(path) == (
        f"listen unix {path}: the file is not a socket: move it or choose another path"
    )
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("call", ["connect", "unlink"])
def test_a_socket_file_that_may_not_be_removed(call, tmp_path, monkeypatch):
    path = str(tmp_path / "s")
    leave_behind(path)

    def refuse(*args):
        raise PermissionError(errno.EACCES, "Permission denied")

    if call == "connect":
        monkeypatch.setattr(socket.socket, "connect", refuse)
        assert failure(path) == f"listen unix {path}: bind: permission denied"
    else:
        real = os.unlink
        monkeypatch.setattr(os, "unlink", lambda what: refuse() if what == path else real(what))
        assert failure(path) == (
            f"listen unix {path}: no process listens there, and the file cannot be removed:"
            " permission denied"
        )
    assert os.path.exists(path)


def test_of_many_that_start_at_once_one_has_the_path(tmp_path):
    path = str(tmp_path / "s")
    for _ in range(50):
        leave_behind(path)
        start = threading.Barrier(4)
        bound, refused = [], []

        def run(start=start, bound=bound, refused=refused):
            start.wait()
            try:
                bound.append(bind(path, "tcp"))
            except StartError as error:
                refused.append(str(error))

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(bound), len(refused)) == (1, 3)
        assert all(text.endswith(IN_USE) for text in refused)
        reach(path)
        bound[0].close()
        assert os.listdir(tmp_path) == []


def test_a_listener_removes_no_file_of_another(tmp_path):
    path = str(tmp_path / "s")
    first = bind(path, "tcp")
    os.unlink(path)
    second = bind(path, "tcp")
    first.close()
    reach(path)
    second.close()
    assert os.listdir(tmp_path) == []


def test_the_file_goes_before_the_socket(tmp_path, monkeypatch):
    """Otherwise, another daemon could bind the path in between, and then lose its file."""
    path = str(tmp_path / "s")
    listener = bind(path, "tcp")
    real = os.unlink

    def unlink(what):
        reach(path)
        real(what)

    monkeypatch.setattr(os, "unlink", unlink)
    listener.close()
    assert os.listdir(tmp_path) == []


def test_the_empty_address_is_an_abstract_socket():
    listener = bind("", "tcp")
    assert listener.text.startswith("@")
    listener.close()
