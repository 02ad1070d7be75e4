"""The master comes to rest, or not: what it waits for, what it gives up, and how it continues."""

from collections.abc import Iterator
from typing import Any

import gevent
import pytest

from nsqcy.nsqd.master import rest as module
from nsqcy.nsqd.master.rest import Rest


class Channel:
    def __init__(self) -> None:
        self.activity = ""
        self.events: list[str] = []
        self.ends_when_given_up = True

    def hold_requests(self) -> None:
        self.events.append("hold")

    def give_up_calls(self) -> None:
        self.events.append("give up")
        if self.ends_when_given_up:
            self.activity = ""

    def resume(self) -> None:
        self.events.append("resume")


class Handle:
    def __init__(self, index: int) -> None:
        self.index = index
        self.channel = Channel()


class Master:
    def __init__(self) -> None:
        self.handles = [Handle(0), Handle(1)]
        self.channels = [handle.channel for handle in self.handles]
        self.events: list[str] = []
        self.activity = ""
        workers: Any = self.handles
        self.rest = Rest(
            lambda: self.events.append("begin"),
            lambda: self.events.append("end"),
            workers,
            lambda: self.activity,
        )

    def end_soon(self, channel: Channel) -> None:
        gevent.spawn_later(0.01, setattr, channel, "activity", "")


@pytest.fixture
def master(monkeypatch: pytest.MonkeyPatch) -> Iterator[Master]:
    for name in ("SETTLE_LIMIT", "CALLS_LIMIT", "WORK_LIMIT"):
        monkeypatch.setattr(module, name, 0.05)
    monkeypatch.setattr(module, "LOOK", 0.001)
    yield Master()


def test_a_master_without_work_rests_at_once(master: Master) -> None:
    assert master.rest.settle() == ""
    assert master.events == []
    assert master.rest.begin() == ""
    assert master.events == ["begin"]
    assert [each.events for each in master.channels] == [["hold"]] * 2
    master.rest.end()
    assert master.events == ["begin", "end"]
    assert [each.events for each in master.channels] == [["hold", "resume"]] * 2


def test_calls_may_end(master: Master, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CALLS_LIMIT", 30)
    master.channels[1].activity = "1 calls are not answered"
    master.end_soon(master.channels[1])
    assert master.rest.begin() == ""
    assert master.channels[1].events == ["hold"]


def test_calls_that_do_not_end_are_given_up(master: Master) -> None:
    master.channels[1].activity = "1 calls are not answered"
    assert master.rest.begin() == ""
    assert [each.events for each in master.channels] == [["hold", "give up"]] * 2


def test_requests_that_do_not_end_prevent_the_rest(master: Master) -> None:
    master.channels[1].activity = "1 requests are being handled"
    master.channels[1].ends_when_given_up = False
    assert master.rest.begin() == "worker 1: 1 requests are being handled"


def test_no_call_is_given_up_while_a_worker_exits(master: Master) -> None:
    """Its rings may only be reset once the other workers have answered."""
    master.activity = "worker 0 has just exited"
    master.channels[1].activity = "1 calls are not answered"
    assert master.rest.begin() == "worker 0 has just exited"
    assert [each.events for each in master.channels] == [["hold"]] * 2


def test_it_waits_for_a_worker_before_anything_is_held_back(master: Master) -> None:
    master.activity = "worker 0 is not up"
    assert master.rest.settle() == "worker 0 is not up"
    assert master.events == master.channels[0].events == []
    assert master.rest.activity() == "worker 0 is not up"
