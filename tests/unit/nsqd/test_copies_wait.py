"""The wait for copies, between the replacements of two workers."""

from nsqcy.nsqd.master import copies_wait
from support.gevent_hub import Lines


class Workers:
    """Workers that report these copies, one report after the other; the last one stays."""

    def __init__(self, *reports):
        self.reports = list(reports)

    def gather(self, call):
        return self.reports.pop(0) if len(self.reports) > 1 else self.reports[0]


LAGGING, CAUGHT_UP = {"caught_up": False}, {"caught_up": True}


def test_it_ends_when_all_have_caught_up():
    workers = Workers(
        {0: LAGGING, 1: CAUGHT_UP}, {0: CAUGHT_UP, 1: OSError()}, {0: CAUGHT_UP, 1: CAUGHT_UP}
    )
    lines = Lines()
    copies_wait.await_copies(workers, lines)
    assert len(workers.reports) == 1 and not lines.all


def test_workers_without_copies_and_of_earlier_versions_are_not_waited_for():
    copies_wait.await_copies(Workers({0: None, 1: {"ready": True}}), Lines())


def test_it_is_bounded(monkeypatch):
    monkeypatch.setattr(copies_wait, "LIMIT", 0.2)
    lines = Lines()
    copies_wait.await_copies(Workers({0: CAUGHT_UP, 1: LAGGING, 2: LAGGING}), lines)
    assert lines.all == ["COPIES: copies have not caught up within 0.2 s; workers: 1, 2"]
