"""Workers that die, hang or stop, and the sockets that the master passes on in the meantime."""

import os
import re
import resource
import signal
import socket
import threading
from collections import Counter
from pathlib import Path

import pytest

from toy import Client, count_fds, is_alive, wait_until


def states(nsqd):
    return [each["state"] for each in nsqd.state()]


def test_connections_are_spread_evenly(toy):
    """Almost evenly: a heartbeat may not count a connection that the worker has just accepted."""
    nsqd = toy(workers=3).ready()
    clients = [nsqd.connect() for _ in range(60)]
    counts = Counter(client.worker() for client in clients)
    assert all(18 <= counts[worker] <= 22 for worker in range(3))


def test_the_least_loaded_worker_gets_the_next(toy):
    nsqd = toy(workers=2).ready()
    clients = [nsqd.connect() for _ in range(20)]
    gone = [client for client in clients if client.worker() == 0]
    kept = next(client for client in clients if client not in gone)

    def told():
        return [each["connections"] for each in eval(kept.ask("!workers"))]

    wait_until(lambda: told() == [len(gone), 20 - len(gone)])
    for client in gone:
        client.close()
    wait_until(lambda: told() == [0, 20 - len(gone)])
    assert [nsqd.connect().worker() for _ in range(5)] == [0] * 5


def test_two_thousand_connections(toy):
    nsqd = toy(workers=3).ready()
    clients = [nsqd.connect() for _ in range(2000)]
    for client in clients:
        client.send("hello")
    served = Counter(client.line().split()[0] for client in clients)
    assert sum(served.values()) == 2000
    assert min(served.values()) >= 400  # a lagging worker gets fewer connections


def test_a_killed_worker_takes_only_its_own_clients(toy):
    nsqd = toy(workers=3).ready()
    clients = {worker: nsqd.client_of(worker) for worker in range(3)}
    victim = nsqd.pid_of(1)
    os.kill(victim, signal.SIGKILL)
    assert clients[1].line() == ""
    nsqd.wait_line("worker 1: up again")
    assert clients[0].worker() == 0
    assert clients[2].worker() == 2
    assert nsqd.client_of(1).ask("!events").startswith("boot generation 1;load")
    state = nsqd.state()[1]
    assert (state["state"], state["generation"], state["restarts"], state["last_exit"]) == (
        "up",
        1,
        1,
        -signal.SIGKILL,
    )
    for worker in (0, 2):
        events = clients[worker].ask("!events").split(";")
        assert events[2:] == ["peer_down 1", "peer_up 1 1"]


def test_rings_are_reset_only_when_all_have_let_go(toy):
    nsqd = toy(workers=3).ready()
    asking = nsqd.client_of(0)
    pids = [nsqd.pid_of(worker) for worker in range(3)]
    os.kill(pids[2], signal.SIGSTOP)  # this worker cannot answer peer_down
    os.kill(pids[1], signal.SIGKILL)
    wait_until(lambda: "'state': 'down'" in asking.ask("!workers"))
    wait_until(lambda: "peer_down 1" in asking.ask("!events"))
    down = eval(asking.ask("!workers"))[1]
    assert (down["state"], down["generation"]) == ("down", 0)
    assert "peer_up" not in asking.ask("!events")
    os.kill(pids[2], signal.SIGCONT)
    nsqd.wait_line("worker 1: up again")
    assert nsqd.client_of(2).ask("!events").endswith("peer_down 1;peer_up 1 1")


def test_all_workers_killed_at_once(toy):
    nsqd = toy(workers=3).ready()
    for pid in nsqd.worker_pids():
        os.kill(pid, signal.SIGKILL)
    for worker in range(3):
        nsqd.wait_line(f"worker {worker}: up again")
    assert {nsqd.connect().worker() for _ in range(6)} == {0, 1, 2}
    # A worker that is already up is notified of the others; a later worker receives their list at
    # startup.
    for worker in range(3):
        events = nsqd.client_of(worker).ask("!events")
        for peer in {0, 1, 2} - {worker}:
            assert re.search(rf"peer_up {peer} 1|\({peer}, 1\)", events)
    assert nsqd.stop() == 0, "\n".join(nsqd.lines)


def test_a_crash_is_restarted_with_a_dump_of_the_stacks(toy):
    nsqd = toy(workers=2).ready()
    nsqd.client_of(1).send("!crash")
    nsqd.wait_line("worker 1: up again")
    assert nsqd.seen("Fatal Python error: Aborted")
    assert nsqd.seen("worker 1: killed by signal 6")


def test_a_worker_without_a_beat_is_aborted(toy):
    nsqd = toy(workers=2, silence=2_000_000_000).ready()
    client = nsqd.client_of(1)
    other = nsqd.client_of(0)
    assert client.ask("!hang") == "hanging"
    assert client.line() == ""
    nsqd.wait_line("worker 1: up again")
    assert nsqd.seen(r"worker 1: no heartbeat for \d+ s, sending SIGABRT")
    assert nsqd.seen("toy_engine.py.* in _command")
    assert other.worker() == 0


def test_a_stopped_worker_is_not_murdered_and_others_serve(toy):
    nsqd = toy(workers=2, silence=2_000_000_000).ready()
    client = nsqd.client_of(1)
    asking = nsqd.client_of(0)
    pid = nsqd.pid_of(1)
    os.kill(pid, signal.SIGSTOP)
    # As soon as the worker lags, new connections go to the other worker.
    wait_until(lambda: all(nsqd.connect_and_ask() for _ in range(3)))
    assert eval(asking.ask("!workers"))[1]["pid"] == pid
    assert not nsqd.seen("no heartbeat for")
    os.kill(pid, signal.SIGCONT)
    assert client.worker() == 1


def test_sockets_a_dead_worker_never_took_are_served_by_another(toy):
    nsqd = toy(workers=2).ready()
    pid = nsqd.pid_of(1)
    os.kill(pid, signal.SIGSTOP)
    clients = [nsqd.connect() for _ in range(20)]
    for client in clients:
        client.send("hello")
    master = nsqd.process.pid
    # The stopped worker has ten of the sockets; the master also keeps them open.
    wait_until(lambda: count_sockets(master, nsqd.address()[1]) >= 11)
    os.kill(pid, signal.SIGKILL)
    assert all(client.line().endswith("hello") for client in clients)


def count_sockets(pid, port):
    """Return the number of a process's open TCP sockets with this local port."""
    inodes = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[1].partition(":")[2], 16) == port:
            inodes.add(fields[9])
    count = 0
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
        except FileNotFoundError:
            continue
        count += target.startswith("socket:[") and target[8:-1] in inodes
    return count


def test_handing_over_under_load_loses_nothing(toy):
    nsqd = toy(workers=3).ready()
    where = nsqd.address()
    answers = Counter()

    def come_and_go():
        for _ in range(200):
            client = Client(where)
            answers[client.ask("hello").endswith("hello")] += 1
            client.close()

    threads = [threading.Thread(target=come_and_go) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {True: 1600}


def test_workers_killed_under_load_leave_no_client_waiting(toy):
    nsqd = toy(workers=3).ready()
    where = nsqd.address()
    ended = Counter()
    stop = threading.Event()

    def come_and_go():
        while not stop.is_set():
            client = Client(where)
            try:
                line = client.ask("hello")
            except OSError:  # a broken pipe also counts as an end; a timeout does not
                line = ""
            ended[line.endswith("hello") or "eof"] += 1
            client.close()

    threads = [threading.Thread(target=come_and_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for round_ in range(5):
            victim = wait_until(nsqd.worker_pids)[round_ % 2]
            os.kill(victim, signal.SIGKILL)
            wait_until(lambda count=round_: count_lines(nsqd, "up again") > count)
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert ended[True] > ended["eof"]
    assert nsqd.stop() == 0, "\n".join(nsqd.lines)


def count_lines(nsqd, text):
    return sum(text in line for line in nsqd.lines)


def test_no_descriptor_leaks(toy):
    nsqd = toy(workers=2).ready()
    held = nsqd.connect()
    pids = [nsqd.process.pid, *(each["pid"] for each in nsqd.state())]

    def settled():
        return [count_fds(pid) for pid in pids]

    assert held.ask("!ask 1 hello") == "1 hello 200005"
    before = settled()
    for _ in range(300):
        client = nsqd.connect()
        client.ask("hello")
        client.close()
    assert held.ask("!ask 1 hello") == "1 hello 200005"
    wait_until(lambda: all(now <= was for now, was in zip(settled(), before, strict=True)))


def test_no_descriptor_leaks_over_restarts(toy):
    nsqd = toy(workers=2).ready()
    nsqd.client_of(0).close()
    before = count_fds(nsqd.process.pid)
    for round_ in range(3):
        os.kill(nsqd.pid_of(1), signal.SIGKILL)
        wait_until(lambda count=round_: count_lines(nsqd, "worker 1: up again") > count)
    # One restart opens at least two descriptors.
    wait_until(lambda: count_fds(nsqd.process.pid) <= before)


def test_a_master_out_of_descriptors_pauses_and_goes_on(toy):
    nsqd = toy(workers=2).ready()
    nsqd.connect().worker()
    pid = nsqd.process.pid
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    # The limit is below every descriptor that may become free: the master may still close that of
    # the connection just passed on.
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    client = nsqd.connect()
    client.send("hello")
    nsqd.wait_line("ERROR: TCP: accept: Too many open files; pausing")
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    assert client.line().endswith("hello")
    assert count_lines(nsqd, "accept:") == 1


def test_a_worker_out_of_descriptors_loses_no_socket(toy):
    nsqd = toy(workers=1).ready()
    nsqd.connect().worker()
    pid = nsqd.pid_of(0)
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    clients = [nsqd.connect() for _ in range(5)]
    for client in clients:
        client.send("hello")
    # The worker cannot receive the sockets, so the master keeps them.
    port = nsqd.address()[1]
    wait_until(lambda: count_sockets(nsqd.process.pid, port) > 1)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    assert all(client.line().endswith("hello") for client in clients)


def test_backoff_grows_for_a_worker_that_keeps_dying(toy):
    nsqd = toy(workers=2).ready()
    for round_ in range(3):
        os.kill(nsqd.pid_of(1), signal.SIGKILL)
        wait_until(lambda count=round_: count_lines(nsqd, "worker 1: up again") > count)
    delays = [line.rpartition(" in ")[2] for line in nsqd.lines if "restarting in" in line]
    assert delays == ["0 s", "0.1 s", "0.2 s"]


def test_workers_call_each_other_through_the_master(toy):
    nsqd = toy(workers=3).ready()
    client = nsqd.client_of(0)
    assert client.ask("!ask 2 hello") == "2 hello 200005"
    assert client.ask("!ask 0 myself") == "0 myself 200005"
    assert client.ask("!fail 1") == "RemoteError told to fail"
    assert client.ask("!fail 7") == "RemoteError worker 7 is not up"


def test_placement_is_told_to_all(toy):
    nsqd = toy(workers=3).ready()
    clients = {worker: nsqd.client_of(worker) for worker in range(3)}
    owners = {name: int(clients[0].ask(f"!place {name}")) for name in ("a", "b", "c")}
    assert sorted(owners.values()) == [0, 1, 2]
    assert int(clients[1].ask("!place a")) == owners["a"]
    for client in clients.values():
        events = wait_until(lambda client=client: placed(client, 3))
        assert events == {f"placed {name} {owner}" for name, owner in owners.items()}


def placed(client, count):
    events = {event for event in client.ask("!events").split(";") if event.startswith("placed")}
    return events if len(events) == count else None


def test_metadata_follows_what_workers_tell(toy, tmp_path):
    nsqd = toy(workers=2).ready()
    client = nsqd.client_of(0)
    path = tmp_path / "nsqd.dat"

    def content(text):
        return path.read_text() == f'{{"topics":{text},"version":"1.3.0"}}'

    assert content("null")
    client.ask("!channel t c")
    client.ask("!channel t e#ephemeral")
    client.ask("!create gone#ephemeral")
    channel = '{"name":"c","paused":false}'
    wait_until(lambda: content(f'[{{"name":"t","paused":false,"channels":[{channel}]}}]'))
    client.ask("!pause t")  # answered when the change is on disk
    assert content(f'[{{"name":"t","paused":true,"channels":[{channel}]}}]')
    client.ask("!delete t")
    assert content("null")
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_killed_worker_loads_its_topics_and_no_ephemeral_ones(toy):
    nsqd = toy(workers=2).ready()
    client = nsqd.client_of(0)
    for name in ("a", "b", "c#ephemeral", "d#ephemeral"):
        client.ask(f"!create {name}")
    owned = [name for name in ("a", "b") if client.ask(f"!place {name}") == "1"]
    os.kill(nsqd.pid_of(1), signal.SIGKILL)
    nsqd.wait_line("worker 1: up again")
    events = nsqd.client_of(1).ask("!events").split(";")
    assert events[1].startswith(f"load {','.join(owned)} peers")


def test_hangup_rereads_the_log_level(toy):
    nsqd = toy(workers=2).ready()
    clients = [nsqd.client_of(worker) for worker in range(2)]
    nsqd.process.send_signal(signal.SIGHUP)
    for client in clients:
        wait_until(lambda client=client: "log_level 3" in client.ask("!events"))
    assert nsqd.stop() == 0, "\n".join(nsqd.lines)
    assert not nsqd.seen("NSQ: bye")


def test_a_worker_can_set_the_log_level_of_all(toy):
    nsqd = toy(workers=2).ready()
    clients = [nsqd.client_of(worker) for worker in range(2)]
    clients[0].ask("!level 1")
    for client in clients:
        assert "log_level 1" in client.ask("!events")


def test_quit_dumps_the_stacks_of_all_and_ends_none(toy):
    nsqd = toy(workers=2).ready()
    client = nsqd.client_of(1)
    nsqd.process.send_signal(signal.SIGQUIT)
    wait_until(lambda: count_lines(nsqd, "(most recent call first)") >= 3)
    assert client.worker() == 1
    assert nsqd.stop() == 0, "\n".join(nsqd.lines)


def test_a_peer_that_resets_at_once_does_no_harm(toy):
    nsqd = toy(workers=2).ready()
    for _ in range(50):
        sock = socket.create_connection(nsqd.address())
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        sock.close()
    assert nsqd.connect().ask("hello").endswith("hello")
    assert all(map(is_alive, nsqd.worker_pids()))


@pytest.mark.parametrize("workers", [2])
def test_accepted_sockets_have_nodelay_and_keepalive(toy, workers):
    nsqd = toy(workers=workers).ready()
    client = nsqd.connect()
    assert client.ask("!sockopts") == "1 1 15 15"
