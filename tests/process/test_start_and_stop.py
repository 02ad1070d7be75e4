"""Startup and exit of nsqd's processes, with an engine that only echoes."""

import fcntl
import json
import os
import signal
import socket
import time

import pytest

from support.nsqd_process import free_port
from toy import Client, is_alive, wait_until


@pytest.mark.parametrize("workers", [1, 3])
def test_serves_both_kinds_and_knows_the_addresses(toy, workers):
    nsqd = toy(workers=workers, addresses=[("tcp", "127.0.0.1:0"), ("http", "0.0.0.0:0")]).ready()
    for kind in ("TCP", "HTTP"):
        client = nsqd.connect(kind)
        _, peer, local, what = client.ask("hello").removesuffix(": hello").split()
        assert peer == f"127.0.0.1:{client.sock.getsockname()[1]}"
        assert local == f"127.0.0.1:{nsqd.address(kind)[1]}"
        assert what == kind.lower()


def test_log_lines_come_in_order(toy, tmp_path):
    nsqd = toy(addresses=[("tcp", "127.0.0.1:0"), ("http", "0.0.0.0:0")]).ready()
    nsqd.connect().worker()
    tcp, http = nsqd.address("TCP"), nsqd.address("HTTP")
    assert nsqd.stop() == 0
    texts = [line.split(" ", 3)[3] for line in nsqd.lines]
    persisting = f"INFO: NSQ: persisting topic/channel metadata to {tmp_path}/nsqd.dat"
    assert texts == [
        persisting,
        f"INFO: TCP: listening on 127.0.0.1:{tcp[1]}",
        f"INFO: HTTP: listening on 0.0.0.0:{http[1]}",
        f"INFO: TCP: closing 127.0.0.1:{tcp[1]}",
        f"INFO: HTTP: closing 0.0.0.0:{http[1]}",
        persisting,
        "INFO: NSQ: bye",
    ]


def test_a_client_that_comes_early_waits_in_the_backlog(toy):
    port = free_port()
    nsqd = toy(addresses=[("tcp", f"127.0.0.1:{port}")])

    def connected():
        try:
            return Client(("127.0.0.1", port))
        except ConnectionRefusedError:
            return None

    client = wait_until(connected)
    nsqd.clients.append(client)
    assert client.ask("early").endswith("tcp: early")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_ends_cleanly_with_silent_peers(toy, tmp_path, signum):
    nsqd = toy(workers=3).ready()
    silent = [nsqd.connect() for _ in range(20)]
    talking = nsqd.connect()
    talking.worker()
    pids = nsqd.worker_pids()
    assert nsqd.stop(signum) == 0
    assert nsqd.lines[-1].endswith("NSQ: bye")
    assert sorted(path.name for path in tmp_path.glob("saved.*")) == [
        "saved.0",
        "saved.1",
        "saved.2",
    ]
    assert not any(map(is_alive, pids))
    assert all(client.line() == "" for client in [*silent, talking])


def test_a_signal_to_the_whole_group_is_the_masters_to_act_on(toy, tmp_path):
    nsqd = toy(workers=2).ready()
    os.killpg(nsqd.process.pid, signal.SIGTERM)
    os.killpg(nsqd.process.pid, signal.SIGINT)
    assert nsqd.wait() == 0
    assert len(list(tmp_path.glob("saved.*"))) == 2


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_signals_at_the_very_end_change_nothing(toy, signum):
    nsqd = toy(workers=1).ready()
    nsqd.process.send_signal(signum)
    while nsqd.process.poll() is None:
        nsqd.process.send_signal(signum)
        time.sleep(0.0002)
    assert nsqd.wait() == 0


def test_a_second_signal_changes_nothing(toy, tmp_path):
    nsqd = toy(workers=2, stop_takes=0.5).ready()
    nsqd.process.send_signal(signal.SIGTERM)
    nsqd.wait_line("closing")
    nsqd.process.send_signal(signal.SIGTERM)
    assert nsqd.wait() == 0
    assert len(list(tmp_path.glob("saved.*"))) == 2


def test_a_signal_while_it_starts(toy):
    nsqd = toy(workers=2)
    wait_until(nsqd.worker_pids)
    pids = nsqd.worker_pids()
    assert nsqd.stop() == 0
    assert nsqd.lines[-1].endswith("NSQ: bye")
    assert not any(map(is_alive, pids))


def test_a_worker_that_does_not_stop_is_killed(toy):
    nsqd = toy(workers=2, stop_limit=0.3).ready()
    assert nsqd.connect().ask("!hang") == "hanging"
    assert nsqd.stop() == 1
    assert nsqd.seen("have not stopped within")
    assert nsqd.seen("NSQ: bye")
    assert "FATAL: NSQ: not everything is saved: worker " in nsqd.lines[-1]
    assert "killed by signal 9" in nsqd.lines[-1]


def test_a_stopped_worker_is_woken_to_save(toy, tmp_path):
    nsqd = toy(workers=2).ready()
    pid = nsqd.pid_of(1)
    os.kill(pid, signal.SIGSTOP)
    assert nsqd.stop() == 0
    assert len(list(tmp_path.glob("saved.*"))) == 2


def test_a_worker_that_is_down_when_the_end_comes_is_not_missed(toy):
    nsqd = toy(workers=2).ready()
    nsqd.connect().worker()
    for _ in range(4):  # until the backoff is long enough
        pids = wait_until(lambda: pids if len(pids := nsqd.worker_pids()) == 2 else None)
        os.kill(pids[1], signal.SIGKILL)
        wait_until(lambda gone=pids[1]: not is_alive(gone))
    nsqd.wait_line("restarting in 0.4 s")
    assert nsqd.stop() == 0
    assert nsqd.lines[-1].endswith("NSQ: bye")


@pytest.mark.parametrize("worker", [0, 1])
@pytest.mark.parametrize("fault", ["cannot_boot", "cannot_load"])
def test_a_worker_that_fails_at_the_start_ends_it(toy, fault, worker):
    nsqd = toy(workers=2, **{fault: worker})
    pids = wait_until(nsqd.worker_pids)
    assert nsqd.wait() == 1
    assert nsqd.seen("FATAL: failed to")
    assert nsqd.seen("told not to")
    assert not nsqd.seen("listening on")
    assert not any(map(is_alive, pids))


@pytest.mark.case("C328")
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "unexpected end of JSON input"),
        ("{", "unexpected end of JSON input"),
        ("nonsense", "invalid character 'o' in literal null (expecting 'u')"),
    ],
)
def test_metadata_that_cannot_be_read_is_fatal(toy, tmp_path, content, reason):
    (tmp_path / "nsqd.dat").write_text(content)
    nsqd = toy()
    assert nsqd.wait() == 1
    path = tmp_path / "nsqd.dat"
    text = f"FATAL: failed to load metadata - failed to parse metadata in {path} - {reason}"
    assert nsqd.lines[-1].endswith(text)
    assert path.read_text() == content


def test_topics_are_loaded_by_their_workers(toy, tmp_path):
    topics = [{"name": name, "paused": False, "channels": None} for name in "abcd"]
    (tmp_path / "nsqd.dat").write_text(json.dumps({"topics": topics}))
    nsqd = toy(workers=2).ready()
    loads = [nsqd.client_of(worker).ask("!events").split(";")[1] for worker in (0, 1)]
    names = [load.split()[1].split(",") for load in loads]
    assert sorted(names[0] + names[1]) == list("abcd")
    assert [len(each) for each in names] == [2, 2]
    assert [load.partition("peers ")[2] for load in loads] == ["[(1, 0)]", "[(0, 0)]"]


def test_when_the_master_is_killed_the_workers_save_and_let_go(toy, tmp_path):
    nsqd = toy(workers=3).ready()
    client = nsqd.connect()
    client.worker()
    pids = nsqd.worker_pids()
    nsqd.process.kill()
    wait_until(lambda: not any(map(is_alive, pids)), "the orphans to exit")
    assert client.line() == ""
    assert len(list(tmp_path.glob("saved.*"))) == 3
    wait_until(lambda: can_lock(tmp_path), "the release of the lock")


@pytest.mark.parametrize("round_", range(3))
def test_a_killed_master_and_a_start_at_once_on_the_same_path(toy, tmp_path, round_):
    first = toy(workers=3, stop_takes=0.3).ready()
    first.connect().worker()
    first.process.kill()
    second = toy(workers=2).ready()
    assert second.connect().ask("hello").endswith("hello")
    assert len(list(tmp_path.glob("saved.*"))) == 3  # the second master waited for the orphans
    assert second.stop() == 0


def can_lock(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def test_orphans_that_cannot_save_do_not_live_for_ever(toy):
    nsqd = toy(workers=2, stop_takes=3600).ready()
    nsqd.connect().worker()
    pids = nsqd.worker_pids()
    nsqd.process.kill()
    wait_until(lambda: not any(map(is_alive, pids)), "the orphans to exit")


def test_unix_sockets(toy, tmp_path):
    paths = [str(tmp_path / "tcp.sock"), str(tmp_path / "http.sock")]
    nsqd = toy(addresses=[("tcp", paths[0]), ("http", paths[1])])
    nsqd.wait_line("HTTP: listening on " + paths[1])
    for path, kind in zip(paths, ("tcp", "http"), strict=True):
        client = Client(path)
        nsqd.clients.append(client)
        assert client.ask("hi").partition(" ")[2] == f"@ {path} {kind}: hi"
    assert nsqd.stop() == 0
    assert not any(map(os.path.exists, paths))


def test_a_unix_socket_that_a_crash_left_is_taken_over(toy, tmp_path):
    path = str(tmp_path / "tcp.sock")
    killed = toy(addresses=[("tcp", path)])
    killed.wait_line("TCP: listening on " + path)
    killed.process.kill()
    killed.wait()
    assert os.path.exists(path)
    nsqd = toy(addresses=[("tcp", path)])
    nsqd.wait_line("TCP: listening on " + path)
    client = Client(path)
    nsqd.clients.append(client)
    assert client.ask("hi").endswith(": hi")


def test_a_unix_socket_that_has_a_listener_is_refused_and_left_alone(toy, tmp_path):
    path = str(tmp_path / "tcp.sock")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)
        sock.listen()
        nsqd = toy(addresses=[("tcp", path)])
        assert nsqd.wait() == 1
    text = (
        f"listen ({path}) failed - listen unix {path}: bind: address already in use;"
        " stop the process that uses it, or change --tcp-address"
    )
    assert nsqd.lines[-1].endswith(f"FATAL: failed to instantiate nsqd - {text}")
    assert os.path.exists(path)


def test_the_wildcard_answers_both_families(toy):
    nsqd = toy(addresses=[("tcp", "0.0.0.0:0")]).ready()
    port = nsqd.address()[1]
    assert nsqd.connect().ask("four").split()[1].startswith("127.0.0.1:")
    try:
        six = socket.create_connection(("::1", port), timeout=30)
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    with six:
        six.sendall(b"six\n")
        assert six.recv(1000).split()[1].startswith(b"[::1]:")


def test_ipv6(toy):
    nsqd = toy(addresses=[("tcp", "[::1]:0")])
    line = nsqd.wait_line(r"TCP: listening on|cannot assign")
    if "cannot assign" in line:
        pytest.skip("this machine has no IPv6 loopback")
    with socket.create_connection(nsqd.address(), timeout=30) as six:
        six.sendall(b"six\n")
        assert six.recv(1000).split()[1].startswith(b"[::1]:")
