"""Memory that a dead worker has left: its replacement restores it, or saves it at the end."""

import os
import signal
import stat

from toy import count_fds, is_alive, wait_until

FAST = 2_000_000_000  # ns without a heartbeat


def kill(nsqd, worker):
    os.kill(nsqd.pid_of(worker), signal.SIGKILL)


def count_lines(nsqd, text):
    return sum(text in line for line in nsqd.lines)


def remember(nsqd, worker, word):
    nsqd.client_of(worker).ask(f"!remember {word}")


def recall(nsqd, worker):
    return nsqd.client_of(worker).ask("!recall")


def test_a_replacement_restores_what_a_dead_worker_left(toy):
    nsqd = toy(workers=2).ready()
    for worker in (0, 1):
        remember(nsqd, worker, f"word{worker}")
    for deaths in (1, 2):
        kill(nsqd, 1)
        wait_until(lambda count=deaths: count_lines(nsqd, "worker 1: up again") == count)
        assert [recall(nsqd, worker) for worker in (0, 1)] == ["word0", "word1"]
    assert nsqd.stop() == 0, "\n".join(nsqd.lines)


def test_a_death_during_the_restore_changes_nothing(toy, tmp_path):
    dies = tmp_path / "dies"
    nsqd = toy(workers=2, dies_loading=str(dies)).ready()
    remember(nsqd, 1, "word")
    before = count_fds(nsqd.process.pid)
    dies.touch()
    kill(nsqd, 1)
    wait_until(lambda: count_lines(nsqd, "worker 1: killed by signal 6") >= 2)
    dies.unlink()
    nsqd.wait_line("worker 1: up again")
    assert recall(nsqd, 1) == "word"
    assert "left out" not in nsqd.client_of(1).ask("!events")
    wait_until(lambda: count_fds(nsqd.process.pid) <= before)


def test_deaths_while_reading_leave_out_a_block_and_then_the_topic(toy, tmp_path):
    dies = tmp_path / "dies"
    dies.touch()
    nsqd = toy(workers=2, dies_reading=str(dies)).ready()
    remember(nsqd, 1, "word")
    kill(nsqd, 1)
    nsqd.wait_line("worker 1: up again")
    assert nsqd.seen(r"TOPIC\(word\): worker 1 died while it restored block 1 from memory")
    assert nsqd.seen(r"TOPIC\(word\): worker 1 died while it restored the topic from memory")
    assert ";left out word 0;left out nothing 0;" in nsqd.client_of(1).ask("!events")
    assert recall(nsqd, 1) == "nothing"
    [kept] = tmp_path.glob("memory.lost.1.*")  # once, for both topics
    assert not nsqd.seen("cannot keep")
    assert nsqd.seen(f"worker 1: the memory that it left is kept in {kept}")
    assert (kept / "state").read_bytes().rstrip(b"\0") == b"word"
    assert [stat.S_IMODE(each.stat().st_mode) for each in (kept, kept / "state")] == [0o700, 0o600]
    # The topic is left out only from what was left at that time.
    dies.unlink()
    remember(nsqd, 1, "other")
    kill(nsqd, 1)
    wait_until(lambda: count_lines(nsqd, "worker 1: up again") == 2)
    assert recall(nsqd, 1) == "other"


def worker_down(nsqd, worker):
    """Kill a worker again and again, until nsqd waits before it starts the next one."""
    line = f"worker {worker}: restarting"
    while not nsqd.seen(rf"{line} in 0\.[48] s"):
        pids = wait_until(lambda: pids if len(pids := nsqd.worker_pids()) == 2 else None)
        before = count_lines(nsqd, line)
        os.kill(pids[-1], signal.SIGKILL)
        wait_until(lambda before=before: count_lines(nsqd, line) > before)


def test_stopping_starts_a_dead_worker_to_save(toy, tmp_path):
    nsqd = toy(workers=2).ready()
    remember(nsqd, 1, "word")
    worker_down(nsqd, 1)
    assert nsqd.stop() == 0, "\n".join(nsqd.lines)
    assert (tmp_path / "saved.1").read_text() == "word"


def test_stopping_starts_no_worker_that_left_nothing(toy, tmp_path):
    nsqd = toy(workers=2).ready()
    worker_down(nsqd, 1)
    assert nsqd.stop() == 0, "\n".join(nsqd.lines)
    assert not (tmp_path / "saved.1").exists()


def test_stopping_waits_for_a_worker_that_is_loading(toy, tmp_path):
    loads = tmp_path / "loads"
    loads.touch()
    nsqd = toy(workers=2, load_waits_for=str(loads), restore_takes=3).ready()
    remember(nsqd, 1, "word")
    loads.unlink()
    pid = nsqd.pid_of(1)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid) and len(nsqd.worker_pids()) == 2)
    nsqd.process.send_signal(signal.SIGTERM)
    wait_until((tmp_path / "saved.0").exists)
    loads.touch()
    assert nsqd.wait() == 0, "\n".join(nsqd.lines)
    assert (tmp_path / "saved.1").read_text() == "word"


def test_a_worker_killed_while_it_stops_is_started_to_save(toy, tmp_path):
    saves = tmp_path / "saves"
    nsqd = toy(workers=2, stop_waits_for=str(saves)).ready()
    remember(nsqd, 1, "word")
    pid = nsqd.pid_of(1)
    nsqd.process.send_signal(signal.SIGTERM)
    nsqd.wait_line("closing")
    os.kill(pid, signal.SIGKILL)
    nsqd.wait_line("worker 1: killed by signal 9")
    saves.touch()
    assert nsqd.wait() == 0, "\n".join(nsqd.lines)
    assert (tmp_path / "saved.1").read_text() == "word"


def test_a_worker_killed_while_it_stops_is_not_started_if_it_left_nothing(toy, tmp_path):
    nsqd = toy(workers=2, stop_waits_for=str(tmp_path / "saves")).ready()
    pid = nsqd.pid_of(1)
    nsqd.process.send_signal(signal.SIGTERM)
    nsqd.wait_line("closing")
    os.kill(pid, signal.SIGKILL)
    nsqd.wait_line("worker 1: killed by signal 9")
    (tmp_path / "saves").touch()
    assert nsqd.wait() == 1
    assert nsqd.lines[-1].endswith("worker 1 killed by signal 9 (Killed)")
    assert not (tmp_path / "saved.1").exists()


def test_a_worker_that_hangs_at_the_end_is_replaced_to_save(toy, tmp_path):
    nsqd = toy(workers=2, silence=FAST).ready()
    client = nsqd.client_of(1)
    client.ask("!remember word")
    assert client.ask("!hang") == "hanging"
    # SIGTERM precedes the arbiter's next check, or follows the worker's death: both end well.
    assert nsqd.stop() == 0, "\n".join(nsqd.lines)
    assert nsqd.seen("worker 1: no heartbeat for")
    assert (tmp_path / "saved.1").read_text() == "word"


def stop_with(toy, tmp_path, fault):
    """Stop nsqd while a worker is down that has left a word, and dies while it loads. Return the
    exit code, the number of deaths, and nsqd."""
    dies = tmp_path / "dies"
    nsqd = toy(workers=2, **{fault: str(dies)}).ready()
    remember(nsqd, 1, "word")
    worker_down(nsqd, 1)
    dies.touch()
    code = nsqd.stop()
    return code, count_lines(nsqd, "worker 1: killed by signal 6"), nsqd


def test_a_worker_that_dies_once_while_it_restores_at_the_end(toy, tmp_path):
    code, deaths, nsqd = stop_with(toy, tmp_path, "dies_once")
    assert (code, deaths) == (0, 1), "\n".join(nsqd.lines)
    assert (tmp_path / "saved.1").read_text() == "word"


def test_a_worker_that_always_dies_while_it_restores_at_the_end(toy, tmp_path):
    code, deaths, nsqd = stop_with(toy, tmp_path, "dies_loading")
    # A restart that was due before the signal is one more.
    assert code == 1 and deaths in (3, 4), "\n".join(nsqd.lines)
    assert nsqd.lines[-1].endswith(
        "worker 1 killed by signal 6 (Aborted), and the messages that it had only in memory "
        "are lost"
    )
    assert not (tmp_path / "saved.1").exists()


def test_without_memfds_a_worker_runs_as_before(toy):
    """A limited address space has no room for them."""
    nsqd = toy(workers=2, address_space=1 << 40).ready()
    assert nsqd.seen("messages in memory are lost if their worker dies: the address space is lim")
    assert count_lines(nsqd, "messages in memory are lost") == 1
    kill(nsqd, 1)
    nsqd.wait_line("worker 1: up again")
    assert recall(nsqd, 1) == "nothing"
    assert nsqd.stop() == 0, "\n".join(nsqd.lines)


def test_the_kernel_kills_a_worker_before_the_master(toy):
    nsqd = toy(workers=2).ready()
    kill(nsqd, 1)  # so that one worker is a fork, and the other one a new program
    nsqd.wait_line("worker 1: up again")

    def score(pid):
        with open(f"/proc/{pid}/oom_score_adj", encoding="ascii") as file:
            return int(file.read())

    expected = min(score(nsqd.process.pid) + 100, 1000)
    assert [score(nsqd.pid_of(worker)) for worker in (0, 1)] == [expected] * 2
