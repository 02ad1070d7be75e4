"""The replacement of a running worker in place: its clients and its memory continue, and a failure
at any step has a defined end."""

import os
import signal

import pytest

from toy import count_fds, is_alive, wait_until


def replace(nsqd, worker):
    client = nsqd.connect()
    client.ask(f"!replace {worker}")
    client.close()


def at_step(path, step, what="ENDS"):
    """Return an environment in which a process ends at a step, until `path` is removed."""
    path.touch()
    return {"TOY_IF": str(path), f"TOY_{what}_AT": step}


def count_lines(nsqd, text):
    return sum(text in line for line in nsqd.lines)


def replaced(nsqd, worker, count=1):
    wait_until(lambda: count_lines(nsqd, f"worker {worker}: replaced") == count, lambda: nsqd.lines)


@pytest.mark.parametrize("workers", [1, 2])
def test_connections_and_memory_continue(toy, workers):
    nsqd = toy(workers=workers).ready()
    last = workers - 1
    client = nsqd.client_of(last)
    client.ask("!remember word")
    about = client.ask("hello")
    first = client.ask("!events").split(";")[1]
    pid = nsqd.pid_of(last)
    replace(nsqd, last)
    replaced(nsqd, last)
    assert client.ask("hello") == about
    assert client.ask("!recall") == "word"
    assert client.ask("!events").split(";")[:2] == ["boot generation 0", first]
    state = nsqd.state()[last]
    assert state["pid"] != pid and (state["state"], state["restarts"]) == ("up", 0)
    assert state["generation"] == 0
    wait_until(lambda: not is_alive(pid))
    assert not nsqd.seen("worker .* (up again|restarting|exited|killed)")
    for each in range(workers):
        assert nsqd.client_of(each).ask("hello").endswith("hello")
    assert nsqd.stop() == 0, "\n".join(nsqd.lines)
    assert (nsqd.data_path / f"saved.{last}").read_text() == "word"


def test_many_replacements_leave_nothing_behind(toy):
    nsqd = toy(workers=2).ready()
    client = nsqd.client_of(1)
    client.ask("!remember word")
    for count in range(1, 4):
        replace(nsqd, 1)
        replaced(nsqd, 1, count)
    wait_until(lambda: len(nsqd.worker_pids()) == 2)
    before = count_fds(nsqd.process.pid), count_fds(nsqd.pid_of(1))
    for count in range(4, 11):
        replace(nsqd, 1)
        replaced(nsqd, 1, count)
    assert client.ask("!recall") == "word"
    wait_until(lambda: len(nsqd.worker_pids()) == 2)
    wait_until(lambda: (count_fds(nsqd.process.pid), count_fds(nsqd.pid_of(1))) <= before)


def test_the_successor_is_replaced_like_any_worker_when_it_dies(toy):
    nsqd = toy(workers=2).ready()
    nsqd.client_of(1).ask("!remember word")
    replace(nsqd, 1)
    replaced(nsqd, 1)
    os.kill(nsqd.pid_of(1), signal.SIGKILL)
    nsqd.wait_line("worker 1: up again")
    assert nsqd.client_of(1).ask("!recall") == "word"
    assert "peer_down 1" in nsqd.client_of(0).ask("!events")


@pytest.mark.parametrize("reason", ["refuses_hand_over", "works_while"])
def test_a_worker_that_cannot_hand_over_serves_on(toy, tmp_path, reason):
    (tmp_path / "refuses").touch()
    nsqd = toy(workers=1, **{reason: str(tmp_path / "refuses")}).ready()
    client = nsqd.client_of(0)
    pid = nsqd.pid_of(0)
    replace(nsqd, 0)
    text = {"refuses_hand_over": "told not to", "works_while": "requests have not ended"}[reason]
    nsqd.wait_line(f"worker 0: not replaced: {text}")
    assert client.ask("hello").endswith("hello")
    assert nsqd.pid_of(0) == pid
    wait_until(lambda: nsqd.worker_pids() == [pid])
    (tmp_path / "refuses").unlink()
    replace(nsqd, 0)
    replaced(nsqd, 0)
    assert client.ask("hello").endswith("hello")


OLD = ["resting", "at rest", "sending", "sent", "committing"]
NEW_BEFORE = ["receiving", "received"]


@pytest.mark.parametrize("step", ["waiting", *NEW_BEFORE])
def test_after_the_death_of_the_successor_the_worker_serves_on(toy, tmp_path, step):
    ends = tmp_path / "ends"
    nsqd = toy(workers=2, environ=at_step(ends, step)).ready()
    client = nsqd.client_of(1)
    client.ask("!remember word")
    pid = nsqd.pid_of(1)
    replace(nsqd, 1)
    nsqd.wait_line("worker 1: not replaced: ")
    assert client.ask("!recall") == "word"
    assert nsqd.pid_of(1) == pid
    ends.unlink()
    replace(nsqd, 1)
    replaced(nsqd, 1)
    assert client.ask("!recall") == "word"


@pytest.mark.parametrize("step", OLD)
def test_a_death_of_the_worker_before_it_has_handed_over(toy, tmp_path, step):
    ends = tmp_path / "ends"
    nsqd = toy(workers=2, environ=at_step(ends, step)).ready()
    client = nsqd.client_of(1)
    client.ask("!remember word")
    replace(nsqd, 1)
    nsqd.wait_line("worker 1: up again")
    assert client.line() == ""
    assert nsqd.client_of(1).ask("!recall") == "word"
    assert nsqd.seen("worker 1: not replaced: the worker has exited")
    assert nsqd.seen("worker 1: killed by signal 9")
    ends.unlink()
    replace(nsqd, 1)
    replaced(nsqd, 1)


def test_a_death_of_the_worker_after_it_has_handed_over_is_not_noticed(toy, tmp_path):
    ends = tmp_path / "ends"
    nsqd = toy(workers=2, environ=at_step(ends, "handed over")).ready()
    client = nsqd.client_of(1)
    client.ask("!remember word")
    replace(nsqd, 1)
    replaced(nsqd, 1)
    assert client.ask("!recall") == "word"
    assert not nsqd.seen("killed by signal")


def test_a_death_of_the_successor_after_it_has_taken_over(toy, tmp_path):
    ends = tmp_path / "ends"
    nsqd = toy(workers=2, environ=at_step(ends, "taken over")).ready()
    client = nsqd.client_of(1)
    client.ask("!remember word")
    replace(nsqd, 1)
    nsqd.wait_line("worker 1: up again")
    assert client.line() == ""
    assert nsqd.client_of(1).ask("!recall") == "word"


@pytest.mark.parametrize("step", [*OLD, "handed over", "waiting", *NEW_BEFORE, "taken over"])
def test_after_the_death_of_the_master_one_of_the_processes_saves(toy, tmp_path, step):
    ends = tmp_path / "ends"
    nsqd = toy(workers=2, environ=at_step(ends, step, "ORPHANED")).ready()
    nsqd.client_of(1).ask("!remember word")
    nsqd.connect().send("!replace 1")
    assert nsqd.wait() == -signal.SIGKILL
    wait_until(lambda: not is_group_alive(nsqd.process.pid))
    assert (tmp_path / "saved.1").read_text() == "word"


def is_group_alive(pid):
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_stopping_ends_a_replacement(toy, tmp_path):
    ends = tmp_path / "ends"
    nsqd = toy(workers=1, environ=at_step(ends, "waiting", "HANGS")).ready()
    nsqd.client_of(0).ask("!remember word")
    replace(nsqd, 0)
    wait_until(lambda: len(nsqd.worker_pids()) == 2)
    assert nsqd.stop() == 0, "\n".join(nsqd.lines)
    assert (tmp_path / "saved.0").read_text() == "word"
