"""The stacks of greenlets: all of them are shown, a few in each event-loop iteration."""

import re
import threading
import weakref
from collections.abc import Iterator

import gevent
import pytest
from gevent.event import Event

from nsqcy.util import stacks as module
from nsqcy.util.stacks import stacks


@pytest.fixture
def end() -> Iterator[Event]:
    event = Event()
    yield event
    event.set()
    gevent.idle()


def waits_here(end: Event) -> None:
    end.wait()


def spawns(end: Event) -> None:
    gevent.spawn(waits_here, end)
    end.wait()


def test_greenlets_follow_the_one_that_spawned_them(end: Event) -> None:
    gevent.spawn(spawns, end)
    gevent.idle()
    text = stacks()
    assert "in waits_here\n" in text and "Spawned at:" in text
    heads = [line for line in text.splitlines() if "+--- <Greenlet" in line]
    (parent,) = [at for at, line in enumerate(heads) if ": spawns(" in line]
    assert ": waits_here(" in heads[parent + 1]
    assert heads[parent + 1].index("+") > heads[parent].index("+")


def test_threads_and_the_current_one() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait, name="waiting")
    thread.start()
    text = stacks()
    done.set()
    thread.join()
    assert "(waiting)" in text and "(MainThread) (CURRENT)" in text


def test_an_ended_greenlet_is_not_kept(end: Event) -> None:
    found = weakref.ref(gevent.spawn(waits_here, end))
    gevent.idle()
    assert found() in module._known
    end.set()
    gevent.idle()
    assert found() is None


def test_other_work_runs_in_between(end: Event) -> None:
    for _ in range(40):
        gevent.spawn(waits_here, end)
    gevent.idle()
    polls: list[int] = []
    watcher = gevent.get_hub().loop.check()
    watcher.start(lambda: polls.append(1))
    text = stacks()
    watcher.stop()
    watcher.close()
    assert text.count(": waits_here(") == 40
    assert len(polls) >= 40 // module._SLICE - 1


def test_only_so_many_are_shown(end: Event, monkeypatch: pytest.MonkeyPatch) -> None:
    others = len(module._known)  # of earlier tests
    monkeypatch.setattr(module, "MAX_GREENLETS", others + 10)
    for _ in range(30):
        gevent.spawn(waits_here, end)
    gevent.idle()
    text = stacks()
    shown = text.count(": waits_here(")
    assert 0 < shown < 30
    left = re.search(r"\n\.\.\. greenlets not shown: (\d+)\n$", text)
    assert left is not None and int(left[1]) >= 30 - shown
