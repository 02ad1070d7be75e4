"""Supervised children: their states, their silence, their deaths, and the shutdown."""

import json
import os
import signal
import subprocess
import sys

import gevent
import pytest

from nsqcy.process import arbiter, spawn
from nsqcy.process.arbiter import DOWN, GONE, SECOND, STARTING, STOPPING, UP, Arbiter, backoff
from support.gevent_hub import Lines, wait_until


class House:
    """An owner of simulated children, with a simulated clock and simulated signals."""

    def __init__(self, count=2, silence=30 * SECOND):
        self.now = 0
        self.next_pid = 1_000_000_000  # larger than any real pid
        self.beats = [0] * count
        self.sent = []
        self.left = []
        self.stopped = set()
        self.no_spawn = 0
        self.lines = Lines()
        self.arbiter = Arbiter(
            count,
            self,
            self.lines,
            clock=lambda: self.now,
            kill=lambda pid, signum: self.sent.append((pid, signum)),
            is_stopped=lambda pid: pid in self.stopped,
            silence=silence,
        )
        self.children = self.arbiter.children

    def spawn(self, index):
        if self.no_spawn:
            self.no_spawn -= 1
            raise OSError(11, "no more processes")
        self.next_pid += 1
        return self.next_pid

    def last_beat(self, index):
        return self.beats[index]

    def exited(self, index, code):
        self.left.append((index, code))

    def left_successor(self, index, code):
        self.left.append(("predecessor", index, code))

    def successor_exited(self, index, code):
        self.left.append(("successor", index, code))

    def reap(self, child, code):
        child.watcher.stop()
        child.watcher.close()
        self.arbiter._reaped(child, code)

    def pass_time(self, seconds, beating=()):
        for _ in range(seconds):
            self.now += SECOND
            for index in beating:
                self.beats[index] = self.now
            self.arbiter.on_tick()

    def die(self, index, code=-9):
        child = self.children[index]
        child.watcher.stop()
        child.watcher.close()
        self.arbiter.on_exit(index, code)

    def close(self):
        for child in self.children:
            if child.pid:
                self.die(child.index)
        self.arbiter.close()


@pytest.fixture
def house():
    made = House()
    made.arbiter.spawn(0)
    made.arbiter.spawn(1)
    yield made
    made.close()


def test_the_states_of_a_child(house):
    child = house.children[0]
    assert child.state == STARTING
    house.arbiter.on_up(0)
    assert child.state == UP
    house.die(0, 1)
    assert (child.state, child.pid, child.last_exit) == (DOWN, 0, 1)
    assert house.left == [(0, 1)]
    house.arbiter.on_up(0)  # too late
    assert child.state == DOWN
    house.arbiter.restart(0)
    wait_until(lambda: child.state == STARTING)
    assert child.restarts == 1


def test_silence_is_aborted_then_killed(house):
    pid = house.children[1].pid
    house.pass_time(29, beating=[0])
    assert house.sent == []
    house.pass_time(1, beating=[0])
    assert house.sent == [(pid, signal.SIGABRT)]
    house.pass_time(4, beating=[0])
    assert house.sent == [(pid, signal.SIGABRT)]
    house.pass_time(1, beating=[0])
    assert house.sent == [(pid, signal.SIGABRT), (pid, signal.SIGKILL)]


def test_a_beat_in_the_last_second_saves_it(house):
    house.pass_time(29)
    house.pass_time(1, beating=[0, 1])
    house.pass_time(29)
    assert house.sent == []


def test_a_stopped_child_is_not_silent(house):
    house.stopped.add(house.children[1].pid)
    house.pass_time(100, beating=[0])
    assert house.sent == []
    house.stopped.clear()
    house.pass_time(29, beating=[0])
    assert house.sent == []
    house.pass_time(1, beating=[0])
    assert len(house.sent) == 1


def test_time_in_which_we_did_not_run_does_not_count(house):
    house.now += 3600 * SECOND
    house.arbiter.on_tick()
    house.pass_time(20)
    assert house.sent == []


def test_a_stopping_child_may_be_silent(house):
    house.pass_time(29, beating=[0])
    house.arbiter.halt()
    house.pass_time(100)
    assert house.sent == []


def test_who_is_unheard(house):
    house.stopped.add(house.children[1].pid)  # stopping the child has no effect here
    house.pass_time(3, beating=[0])
    assert house.arbiter.unheard(3 * SECOND) == []
    house.pass_time(1, beating=[0])
    assert house.arbiter.unheard(3 * SECOND) == [1]
    house.die(1)
    assert house.arbiter.unheard(3 * SECOND) == []
    house.arbiter.restart(1)
    wait_until(lambda: house.children[1].pid)
    assert house.arbiter.unheard(3 * SECOND) == []
    house.pass_time(4)
    assert house.arbiter.unheard(3 * SECOND) == [0, 1]
    house.arbiter.halt()
    assert house.arbiter.unheard(3 * SECOND) == []


def test_a_new_child_does_not_inherit_silence(house):
    house.pass_time(29, beating=[0])
    house.die(1)
    house.arbiter.restart(1)
    wait_until(lambda: house.children[1].pid)
    house.pass_time(29, beating=[0])
    assert house.sent == []


def test_backoff_doubles_up_to_its_limit():
    assert [backoff(failures) for failures in range(9)] == [
        0,
        0,
        0.1,
        0.2,
        0.4,
        0.8,
        1.6,
        3.2,
        5.0,
    ]
    assert backoff(10**9) == 5.0


def test_failures_in_a_row_are_forgotten_by_a_child_that_settles(house):
    child = house.children[0]
    for failures in (1, 2):
        house.arbiter.on_up(0)
        house.die(0)
        assert child.failures == failures
        house.arbiter.restart(0)
        wait_until(lambda: child.pid)
    house.arbiter.on_up(0)
    house.now += arbiter.SETTLED
    house.die(0)
    assert child.failures == 0


def test_a_start_that_fails_is_tried_again():
    house = House(count=1)
    house.no_spawn = 2
    house.arbiter.spawn(0)
    wait_until(lambda: house.children[0].pid)
    assert any("no more processes" in line for line in house.lines.all)
    house.close()


def test_no_worker_is_restarted_after_halt(house):
    house.die(0)
    house.arbiter.halt()
    assert [child.state for child in house.children] == [GONE, STOPPING]
    house.arbiter.restart(0)
    gevent.sleep(0.01)
    assert house.children[0].pid == 0
    assert not house.arbiter.wait(0)
    house.die(1, 0)
    assert house.arbiter.wait(0)


def test_a_child_is_revived_after_halt(house):
    house.die(0)
    house.arbiter.halt()
    house.die(1, 0)
    assert house.arbiter.wait(0)
    assert house.arbiter.revive(0)
    child = house.children[0]
    assert (child.state, child.restarts) == (STARTING, 1)
    assert not house.arbiter.wait(0)
    house.pass_time(30)  # it may not be silent until it stops
    assert house.sent == [(child.pid, signal.SIGABRT)]
    house.arbiter.stopping(0)
    house.pass_time(100)
    assert len(house.sent) == 1
    house.die(0, 0)
    assert child.state == GONE
    assert house.arbiter.wait(0)


def test_a_child_that_cannot_be_revived(house):
    house.arbiter.halt()
    house.die(0)
    house.die(1)
    house.no_spawn = 1
    assert not house.arbiter.revive(0)
    gevent.sleep(0.01)
    assert house.children[0].state == GONE
    assert house.arbiter.wait(0)


def test_a_stopping_child_that_has_to_send_heartbeats(house):
    pid = house.children[0].pid
    house.arbiter.halt()
    house.pass_time(100)
    house.arbiter.expect_heartbeats(0)
    house.pass_time(30)
    assert house.sent == [(pid, signal.SIGABRT)]
    house.die(0)
    house.arbiter.expect_heartbeats(0)
    house.arbiter.stopping(0)
    assert house.children[0].state == GONE


def test_all_gone_before_halt_is_not_the_end(house):
    house.die(0)
    house.die(1)
    for index in (0, 1):
        house.arbiter.restart(index)
    wait_until(lambda: all(child.pid for child in house.children))
    house.arbiter.halt()
    assert not house.arbiter.wait(0)


def test_how_ends_are_described():
    assert arbiter.describe(-9) == "killed by signal 9 (Killed)"
    assert arbiter.describe(3) == "exited with status 3: could not boot"
    assert arbiter.describe(77) == "exited with status 77: unknown"


def test_stopped_processes_are_known():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert not arbiter.stopped(process.pid)
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: arbiter.stopped(process.pid))
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: not arbiter.stopped(process.pid))
        process.kill()
    assert not arbiter.stopped(process.pid)


class RealHouse(House):
    """The children are real processes."""

    def __init__(self, code):
        super().__init__(count=1)
        self.code = code
        self.arbiter._kill = os.kill

    def spawn(self, index):
        return spawn.spawn([sys.executable, "-c", self.code], [])


@pytest.mark.parametrize(
    ("code", "status"),
    [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9), ("", 0)],
)
def test_real_children_are_reaped(code, status):
    house = RealHouse(code)
    house.arbiter.spawn(0)
    wait_until(lambda: house.left)
    assert house.left == [(0, status)]
    house.arbiter.close()


def test_a_child_that_died_before_anybody_watched():
    house = RealHouse("")
    pid = house.spawn(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    gevent.sleep(0)
    house.arbiter.born(0, pid)
    house.arbiter.check_early_deaths()
    wait_until(lambda: house.left)
    assert house.left == [(0, 0)]
    house.arbiter.close()


def test_the_next_program_continues_with_the_children():
    house = House(count=3)
    for index in range(3):
        house.arbiter.spawn(index)
    house.arbiter.on_up(0)
    house.pass_time(7, beating=[0])
    house.die(2)
    dumped = json.loads(json.dumps(house.arbiter.dump()))
    successor = House(count=3)
    successor.now = house.now
    successor.next_pid = house.next_pid
    successor.arbiter.restore(dumped)
    assert successor.arbiter.dump() == dumped
    up, silent, down = successor.children
    assert (up.state, silent.state, silent.silent) == (UP, STARTING, 7 * SECOND)
    assert (down.state, down.last_exit, down.failures) == (DOWN, -9, 1)
    wait_until(lambda: down.pid)  # restarted
    assert (down.state, down.restarts) == (STARTING, 0)
    successor.pass_time(30 - 7, beating=[0, 2])
    assert successor.sent == [(silent.pid, 6)]
    for each in (house, successor):
        each.close()


def test_a_child_that_died_before_the_next_program_watched():
    house = RealHouse("raise SystemExit(3)")
    house.arbiter.born(0, house.spawn(0))
    house.arbiter.on_up(0)
    dumped = house.arbiter.dump()
    house.children[0].watcher.stop()
    os.waitid(os.P_PID, house.children[0].pid, os.WEXITED | os.WNOWAIT)
    successor = RealHouse("")
    successor.arbiter.restore(dumped)
    successor.arbiter.check_early_deaths()
    wait_until(lambda: successor.left)
    assert successor.left == [(0, 3)]
    for each in (house, successor):
        each.arbiter.close()


# -- successors


def test_a_promoted_successor_is_the_child(house):
    child = house.children[0]
    house.arbiter.on_up(0)
    old = child.pid
    house.arbiter.successor_born(0, 7)
    house.arbiter.promote(0)
    assert (child.pid, child.state, child.restarts) == (7, STARTING, 0)
    [retired] = house.arbiter._retired
    assert retired.pid == old
    house.reap(retired, arbiter.HANDED_OVER)
    assert (house.left, house.arbiter._retired, child.pid) == ([], [], 7)
    house.die(0)
    assert house.left == [(0, -9)]


def test_a_pump_is_only_reaped(house):
    """A child that has handed over may still run; the next program of this process knows it."""
    old = house.children[0].pid
    house.arbiter.successor_born(0, 7)
    house.arbiter.promote(0)
    [pump] = house.arbiter.pumps
    assert pump.pid == old and house.arbiter.dump_pumps() == [[0, old]]
    house.arbiter.halt()
    for index in range(len(house.children)):
        house.die(index)
    assert house.arbiter.wait(0.01)
    assert not house.arbiter.end_pumps(signal.SIGTERM, 0.01)
    assert house.sent[-1] == (old, signal.SIGTERM)
    house.reap(pump, arbiter.HANDED_OVER)
    assert house.arbiter.end_pumps(signal.SIGTERM, 0.01)
    assert house.arbiter.pumps == [] and house.left[0] == (0, -9)
    assert len(house.left) == len(house.children)


def test_a_child_that_has_handed_over_to_a_dead_successor(house):
    old = house.children[0].pid
    house.arbiter.retire(0)
    house.arbiter.on_exit(0, arbiter.HANDED_OVER)
    assert house.left == [(0, arbiter.HANDED_OVER)]
    house.reap(house.arbiter.pumps[0], arbiter.HANDED_OVER)
    assert house.left == [(0, arbiter.HANDED_OVER)] and house.children[0].pid != old


def test_pumps_are_children_of_the_next_program():
    house = RealHouse("")
    pid = house.spawn(0)
    house.arbiter.restore_pumps([[0, pid]])
    house.arbiter.check_early_deaths()
    assert house.arbiter.end_pumps(0, 30)
    assert house.left == []
    house.arbiter.close()


def test_the_exit_of_a_successor_changes_nothing(house):
    pid = house.children[0].pid
    house.arbiter.successor_born(0, 7)
    house.arbiter.dismiss_successor(0)
    assert house.sent == [(7, signal.SIGKILL)]
    house.reap(house.arbiter._successors[0], -9)
    assert house.left == [("successor", 0, -9)]
    assert house.children[0].pid == pid
    house.arbiter.dismiss_successor(0)
    assert len(house.sent) == 1
    house.arbiter.drop_successor(0)
    house.die(0)
    assert house.left[1:] == [(0, -9)]


def test_the_owner_decides_what_follows_an_exit_before_the_promotion(house):
    child = house.children[0]
    house.arbiter.successor_born(0, 7)
    house.reap(child, arbiter.HANDED_OVER)
    assert house.left == [("predecessor", 0, arbiter.HANDED_OVER)]
    house.arbiter.promote(0)
    assert (child.pid, house.arbiter._retired) == (7, [])


def test_the_exits_of_both_in_any_order_are_left_to_the_owner(house):
    house.arbiter.successor_born(0, 7)
    house.reap(house.arbiter._successors[0], -9)
    house.reap(house.children[0], arbiter.HANDED_OVER)
    assert house.left == [("successor", 0, -9), ("predecessor", 0, arbiter.HANDED_OVER)]
    house.arbiter.drop_successor(0)
    house.arbiter.on_exit(0, arbiter.HANDED_OVER)
    assert house.left[2:] == [(0, arbiter.HANDED_OVER)]


def test_a_successor_that_hangs_is_waited_for_only_at_the_end(house):
    house.arbiter.successor_born(0, 7)
    successor = house.arbiter._successors[0]
    house.arbiter.drop_successor(0)
    house.arbiter.halt()
    house.die(0, 0)
    house.die(1, 0)
    assert not house.arbiter.wait(0)
    house.reap(successor, -9)
    assert house.arbiter.wait(0)


def test_the_end_waits_for_successors(house):
    house.arbiter.successor_born(0, 7)
    successor = house.arbiter._successors[0]
    house.arbiter.halt()
    house.reap(house.children[0], 0)
    house.die(1, 0)
    assert not house.arbiter.wait(0)
    house.reap(successor, 0)
    assert house.arbiter.wait(0)
