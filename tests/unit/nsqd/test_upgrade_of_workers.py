"""The last steps of an upgrade: the workers are replaced, and one that cannot be serves on."""

from nsqcy.errors import StartError
from nsqcy.nsqd.master.master_state import Program, State
from nsqcy.nsqd.master.rest import Rest
from nsqcy.nsqd.master.upgrade import Upgrade
from nsqcy.nsqd.master.workers import Workers
from nsqcy.process.systemd import Notifier
from support.gevent_hub import Lines, wait_until

STEPS = ["trial", "rest", "execute"]


class Old:
    """Workers of the previous version. Each attempt to replace one has its own outcome: None, or
    the reason for a failure."""

    forgotten = False

    def __init__(self, outcomes):
        self.left = sorted(outcomes)
        self.outcomes = {index: list(each) for index, each in outcomes.items()}
        self.attempts = []
        self.down = set()
        self.broken = set()

    def comes_up(self, index):
        return index not in self.down

    def has_way_back(self, index):
        return index in self.broken

    def forget_previous_version(self):
        self.forgotten = True

    def of_previous_version(self):
        return list(self.left)

    def await_copies(self):
        self.attempts.append("copies")

    def replace_in_place(self, index):
        self.attempts.append(index)
        outcome = self.outcomes[index].pop(0)
        if outcome == "died":
            self.left.remove(index)
        elif outcome == "broken":
            self.broken.add(index)
        elif outcome == "stays down":
            self.left.remove(index)
            self.down.add(index)
        if outcome is not None:
            raise StartError(f"worker {index}: {outcome}")
        self.left.remove(index)


def upgraded(old):
    """Return the state after an upgrade with these workers, and the log."""
    lines = Lines()
    rest = Rest(lambda: None, lambda: None, Workers(lines), lambda: "")
    upgrade = Upgrade([], 0, rest, lambda keep: {}, lambda: 3, Notifier({}), lines)
    dumped = {"results": {"done": 3, "incomplete": 1}, "steps": list(STEPS), "executed_at": 0}
    program = Program([], None)
    upgrade.restore(dumped, State(-1, {}, "", "0.0.9", "nsqd", {}, program, {}, []))
    upgrade.resume(old)
    assert upgrade.state()["under_way"]
    wait_until(lambda: not upgrade.state()["under_way"])
    found = upgrade.state()
    assert found["upgrades"] == 5 and found["pumps"] == 3 and found["steps"][:3] == STEPS
    result = "incomplete" if found["error"] else "done"
    assert upgrade.results[result] == dumped["results"][result] + 1
    return found["steps"][3:], found["error"], lines.all


def test_all_workers_are_replaced():
    old = Old({0: [None], 1: [None]})
    steps, error, lines = upgraded(old)
    assert (steps, error, old.attempts) == (
        ["worker 0", "worker 1", "done"],
        "",
        ["copies", 0, "copies", 1, "copies"],
    )
    assert len(lines) == 1 and "continues from version 0.0.9" in lines[0]
    assert old.forgotten


def test_another_attempt_follows_a_failure():
    old = Old({0: ["busy", None]})
    assert upgraded(old)[:2] == (["worker 0", "done"], "")


def test_a_worker_that_cannot_be_replaced_serves_on():
    old = Old({0: ["busy", "full"], 1: [None]})
    steps, error, lines = upgraded(old)
    assert (steps, error, old.attempts[:-1:2]) == (["worker 1"], "worker 0: full", ["copies"] * 3)
    assert old.attempts[1::2] == [0, 0, 1]
    assert lines[-1] == "UPGRADE: some workers still run version 0.0.9: worker 0: full"
    assert not old.forgotten


def test_a_worker_that_has_died_was_started_with_this_version():
    old = Old({0: ["died"], 1: [None]})
    steps, error, _ = upgraded(old)
    assert (steps, error) == (["worker 0", "worker 1", "done"], "")


def test_a_version_that_cannot_run_is_not_tried_again():
    old = Old({0: ["broken"], 1: [None]})
    steps, error, _ = upgraded(old)
    assert (steps, error) == (["worker 1"], "worker 0: broken")
    assert old.attempts == ["copies", 0, "copies", 1, "copies"]


def test_a_worker_that_does_not_come_up_again_is_a_failure():
    old = Old({0: ["stays down"], 1: [None]})
    steps, error, _ = upgraded(old)
    assert (steps, error) == (["worker 1"], "worker 0: stays down")
    old = Old({0: [], 1: [None]})
    old.down.add(0)
    assert upgraded(old)[:2] == (["worker 1"], "worker 0 is not up")
