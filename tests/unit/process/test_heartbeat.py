"""The load that a worker reports."""

import os
import time

import gevent
import pytest

from nsqcy.process import heartbeat
from nsqcy.process.heartbeat import Heartbeat, LoadMeter

SECOND = 1_000_000_000


@pytest.fixture
def meter(monkeypatch):
    made = LoadMeter()
    made.busy = made.ran = 0
    monkeypatch.setattr(made, "_times", lambda: (made.busy, made.ran))
    return made


def test_how_busy_over_the_last_second(meter):
    busy, ran = [], []
    for half_second, part in enumerate([0, 0, 0.5, 0.5, 0.25, 0, 0, 0]):
        meter.busy += int(part * SECOND)
        meter.ran += int(part * SECOND) // 2
        for readings, permille in zip(
            (busy, ran), meter.permille(half_second * SECOND // 2), strict=True
        ):
            readings.append(permille)
    assert busy == [0, 0, 500, 1000, 750, 250, 0, 0]
    assert ran == [0, 0, 250, 500, 375, 125, 0, 0]


def test_a_gap_is_averaged_over(meter):
    meter.permille(0)
    meter.busy = 5 * SECOND
    assert meter.permille(10 * SECOND) == (500, 0)


def test_never_more_than_all_of_it(meter):
    meter.permille(0)
    meter.busy = meter.ran = 5 * SECOND
    assert meter.permille(SECOND) == (1000, 1000)


def test_the_meter_counts_work():
    meter = LoadMeter()
    before = meter._times()
    end = time.thread_time() + 0.02
    while time.thread_time() < end:
        pass
    for now, then in zip(meter._times(), before, strict=True):
        assert now - then >= 10_000_000


def test_without_the_kernels_help(monkeypatch):
    monkeypatch.setattr(heartbeat, "_SCHEDSTAT", "/no/such/file")
    meter = LoadMeter()
    assert meter.permille(time.monotonic_ns()) == (0, 0)
    busy, ran = meter._times()
    assert busy == ran <= time.thread_time_ns()


class Slots:
    def __init__(self):
        self.entered = []
        self.beats = []

    def enter(self, worker, pid, state):
        self.entered.append((worker, pid, state))

    def beat(self, worker, now, busy, ran, connections):
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
