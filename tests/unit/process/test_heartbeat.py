"""How busy a worker says it is."""

import os
import time

import gevent
import pytest

from nsqcy.process import heartbeat
from nsqcy.process.heartbeat import BusyMeter, Heartbeat

SECOND = 1_000_000_000


@pytest.fixture
def meter(monkeypatch):
    made = BusyMeter()
    made.wanted = 0
    monkeypatch.setattr(made, "_wanted", lambda: made.wanted)
    return made


def test_how_busy_over_the_last_second(meter):
    readings = []
    for half_second, busy in enumerate([0, 0, 0.5, 0.5, 0.25, 0, 0, 0]):
        meter.wanted += int(busy * SECOND)
        readings.append(meter.permille(half_second * SECOND // 2))
    assert readings == [0, 0, 500, 1000, 750, 250, 0, 0]


def test_a_gap_is_averaged_over(meter):
    meter.permille(0)
    meter.wanted = 5 * SECOND
    assert meter.permille(10 * SECOND) == 500


def test_never_more_than_all_of_it(meter):
    meter.permille(0)
    meter.wanted = 5 * SECOND
    assert meter.permille(SECOND) == 1000


def test_the_meter_counts_work():
    meter = BusyMeter()
    before = meter._wanted()
    end = time.thread_time() + 0.02
    while time.thread_time() < end:
        pass
    assert meter._wanted() - before >= 10_000_000


def test_without_the_kernels_help(monkeypatch):
    monkeypatch.setattr(heartbeat, "_SCHEDSTAT", "/no/such/file")
    meter = BusyMeter()
    assert meter.permille(time.monotonic_ns()) == 0
    assert meter._wanted() <= time.thread_time_ns()


class Slots:
    def __init__(self):
        self.entered = []
        self.beats = []

    def enter(self, worker, pid, state):
        self.entered.append((worker, pid, state))

    def beat(self, worker, now, busy, connections):
        self.beats.append((worker, now, busy, connections))


def test_it_beats_at_once_and_goes_on(monkeypatch):
    monkeypatch.setattr(heartbeat, "PERIOD", 0.001)
    slots = Slots()
    Heartbeat(slots, 3, lambda: 7).start()
    assert slots.entered == [(3, os.getpid(), heartbeat.ENTERED)]
    assert len(slots.beats) == 1
    with gevent.Timeout(30):
        while len(slots.beats) < 3:
            gevent.sleep(0.001)
    assert all((worker, connections) == (3, 7) for worker, _, _, connections in slots.beats)
    assert slots.beats[0][1] < slots.beats[2][1]
