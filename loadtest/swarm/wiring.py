"""Runs a test from its start to its report, driven by locust's events.

In the process that runs alone or is the master, `Wiring` creates the channels, watches the machine,
waits at the end for pending messages, and reports. In a worker, it starts the process's part of the
test and sends its results. The Run owns the test's state.
"""

import argparse
import logging
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import gevent
from locust.env import Environment
from locust.exception import StopTest
from locust.runners import STATE_MISSING, MasterRunner, WorkerRunner

from loadtest.swarm import cluster, report
from loadtest.swarm.consumers import ConsumeUser
from loadtest.swarm.machine import Machine, Sample
from loadtest.swarm.options import Options
from loadtest.swarm.publishers import HttpUser
from loadtest.swarm.run import Quiet, Run
from loadtest.swarm.thresholds import Threshold, judge, latest

MISSED = 3  # exit code of a run that misses a threshold
HALT = "nsq-halt"  # the master's message: stop publishing
BEATS = 20  # per second; at each tick, a process measures its own lateness
LOOK = 0.1  # seconds between two checks of whether everything has been delivered


class Wiring:
    """State of one locust process."""

    def __init__(self, environment: Environment) -> None:
        assert environment.parsed_options is not None
        self._environment = environment
        self._runner: Any = environment.runner
        self._parsed: argparse.Namespace = environment.parsed_options
        self._run: Run | None = None  # None if no test is running
        self._samples: list[Sample] = []
        self._beside: list[gevent.Greenlet] = []  # greenlets in addition to the users
        self._quiet: dict[str, Quiet] = {}  # by worker
        self._is_worker = isinstance(self._runner, WorkerRunner)
        self._is_master = isinstance(self._runner, MasterRunner)
        events: Any = environment.events
        events.test_start.add_listener(self._start)
        events.request.add_listener(self._request)
        events.test_stopping.add_listener(self._stopping)
        events.test_stop.add_listener(self._stop)
        if self._is_worker:
            events.report_to_master.add_listener(self._send)
            self._runner.register_message(HALT, self._halt)
        else:
            events.worker_report.add_listener(self._receive)

    # -- the start

    def _start(self, **_: Any) -> None:
        try:
            options = Options.of(self._parsed)
            addresses = [] if self._is_worker else self._prepare(options)
            self._run = Run.current = self._new_run(options)
        except (ValueError, cluster.Unreachable) as error:
            self._environment.process_exit_code = 1
            raise StopTest(str(error)) from None
        self._samples, self._quiet = [], {}
        if not self._is_worker:
            self._beside.append(gevent.spawn(self._watch, Machine(addresses)))
        if not self._is_master:
            self._beside.append(gevent.spawn(self._beat, self._run))

    def _prepare(self, options: Options) -> list[str]:
        """Return the nsqds under test, after creating all channels on them."""
        self._parsed.nsq_run = secrets.randbits(63)  # sent to workers with the flags
        if self._has(HttpUser):
            cluster.http_urls(options)  # fails here rather than in a worker
        if self._has(ConsumeUser):
            return cluster.make_channels(options)
        return cluster.tcp_addresses(options)

    def _new_run(self, options: Options) -> Run:
        process = max(0, getattr(self._runner, "worker_index", 0))
        run = Run(options, self._parsed.nsq_run, process, consumes=self._has(ConsumeUser))
        if self._has(HttpUser) and not self._is_master:
            run.https = cluster.http_urls(options)
        return run

    def _has(self, kind: type) -> bool:
        return kind in self._environment.user_classes

    # -- during the test

    def _request(self, **told: Any) -> None:
        if self._run is not None:
            self._run.request(**told)

    def _watch(self, machine: Machine) -> None:
        while True:
            gevent.sleep(1)
            self._samples.append(machine.sample(self._runner.user_count))

    def _beat(self, run: Run) -> None:
        """Wake up on a schedule, as users do, and measure the lateness."""
        while True:
            begun, late = time.monotonic(), 0.0
            for number in range(1, BEATS + 1):
                due = begun + number / BEATS
                gevent.sleep(max(0.0, due - time.monotonic()))
                late = max(late, time.monotonic() - due)
            run.strains.note(late * 1e3)

    def _send(self, client_id: str, data: dict[str, Any]) -> None:
        """Send from a worker to the master."""
        if self._run is not None:
            data["nsq"] = self._run.take()

    def _receive(self, client_id: str, data: dict[str, Any]) -> None:
        if self._run is not None and "nsq" in data:
            self._quiet[client_id] = self._run.merge(data["nsq"])

    # -- the end

    def _halt(self, **_: Any) -> None:
        """Stop all publishers."""
        if self._run is not None:
            self._run.quiet.halted = True

    def _stopping(self, **_: Any) -> None:
        """Called before users are stopped: publishers end, and consumers receive the remaining
        messages."""
        run = self._run
        self._halt()
        if run is None or self._is_worker:
            return
        run.ended()
        if self._is_master:
            self._runner.send_message(HALT)
        with suppress(gevent.Timeout), gevent.Timeout(run.options.drain):
            while not (self._is_quiet(run) and run.is_drained):
                gevent.sleep(LOOK)
        run.drained()

    def _is_quiet(self, run: Run) -> bool:
        """Return whether all publishers have received their last response."""
        if not self._is_master:
            return run.quiet.is_so
        workers = self._runner.clients.items()
        there = [name for name, worker in workers if worker.state != STATE_MISSING]
        return all(self._quiet.get(name, Quiet()).is_so for name in there)

    def _stop(self, **_: Any) -> None:
        """Called when the users have ended."""
        run = self._run
        gevent.killall(self._beside)
        self._beside = []
        if run is None or self._is_worker:
            return  # a worker's last report is still outstanding
        self._run = None
        self._environment.process_exit_code = self._report(run)
        # Otherwise, locust would now print the same figures in whole milliseconds.
        logging.getLogger("locust.stats_logger").setLevel(logging.WARNING)

    def _report(self, run: Run) -> int | None:
        """Evaluate and report; return the exit code, or None to leave errors in users to locust."""
        usual = [Threshold("failures", "", 0)]
        if run.consumes:
            usual.append(Threshold("lost", "", 0))
        verdicts = judge(latest([*usual, *run.options.bars]), run.figure)
        shape: Any = self._environment.shape_class
        figures = report.gather(run, self._samples, verdicts, shape.knee)
        path = Path(run.options.report)
        report.write(path, figures)
        print(report.text(figures), f"report  {path}", sep="\n", flush=True)
        if not all(each.kept for each in verdicts):
            return MISSED
        return None if self._runner.exceptions else 0
