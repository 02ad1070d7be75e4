"""A test from its start to its report, on locust's events.

In the process that runs alone or is the master, `Wiring` makes the channels, watches the machine,
waits at the end for what is still under way, and reports. In a worker it starts the process's part
of the test, and sends in what became of it. The test's state is the Run's.
"""

import logging
import secrets
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import gevent
from locust.env import Environment
from locust.exception import StopTest
from locust.runners import STATE_MISSING, LocalRunner, MasterRunner, WorkerRunner

from loadtest.swarm import cluster, report
from loadtest.swarm.machine import Machine, Sample
from loadtest.swarm.options import Options
from loadtest.swarm.run import Quiet, Run
from loadtest.swarm.thresholds import Threshold, judge, latest
from loadtest.swarm.users import ConsumeUser, HttpUser

MISSED = 3  # exit code of a run that does not keep a threshold
HALT = "nsq-halt"  # the master's word for: publish nothing more
NUMBER = "nsq_run"  # where the number of a run travels to the workers
LOOK = 0.1  # seconds between two looks at whether all is delivered

log = logging.getLogger("locust.nsq")


class Wiring:
    """Of one process of locust."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._run: Run | None = None  # a test goes on
        self._samples: list[Sample] = []
        self._sampling: gevent.Greenlet | None = None
        self._quiet: dict[str, Quiet] = {}  # of workers
        events, runner = environment.events, environment.runner
        events.test_start.add_listener(self._start)
        events.request.add_listener(self._request)
        events.test_stopping.add_listener(self._stopping)
        if isinstance(runner, WorkerRunner):
            events.report_to_master.add_listener(self._send)
            runner.register_message(HALT, self._halt)
        else:
            events.worker_report.add_listener(self._receive)
            events.test_stop.add_listener(self._stop)

    # -- the start

    def _start(self, **_: Any) -> None:
        runner, parsed = self._environment.runner, self._environment.parsed_options
        try:
            options = Options.of(parsed)
            if not isinstance(runner, WorkerRunner):
                setattr(parsed, NUMBER, secrets.randbits(63))
                self._watch(self._prepare(options))
            self._run = Run.current = Run(
                options,
                getattr(parsed, NUMBER),
                max(0, getattr(runner, "worker_index", 0)),
                consumes=self._has(ConsumeUser),
            )
            if self._has(HttpUser) and not isinstance(runner, MasterRunner):
                self._run.https = cluster.http_urls(options)
        except (ValueError, cluster.Unreachable) as error:
            self._environment.process_exit_code = 1
            raise StopTest(str(error)) from None

    def _has(self, kind: type) -> bool:
        return kind in self._environment.user_classes

    def _prepare(self, options: Options) -> list[str]:
        """The nsqds of the test, with all channels on them."""
        if self._has(HttpUser):
            cluster.http_urls(options)  # raises here, and not in a worker
        if self._has(ConsumeUser):
            return cluster.make_channels(options)
        return cluster.tcp_addresses(options)

    def _watch(self, addresses: list[str]) -> None:
        self._samples, self._quiet = [], {}
        self._sampling = gevent.spawn(self._sample, Machine(addresses))

    def _sample(self, machine: Machine) -> None:
        runner = self._environment.runner
        while True:
            gevent.sleep(1)
            self._samples.append(machine.sample(runner.user_count))
            if self._run and isinstance(runner, LocalRunner):
                self._run.note_busy()

    def _request(self, **told: Any) -> None:
        if self._run is not None:
            self._run.request(**told)

    # -- between master and workers

    def _send(self, client_id: str, data: dict[str, Any]) -> None:
        if self._run is not None:
            data["nsq"] = self._run.take()

    def _receive(self, client_id: str, data: dict[str, Any]) -> None:
        if self._run is not None and "nsq" in data:
            self._quiet[client_id] = self._run.merge(data["nsq"])

    def _halt(self, **_: Any) -> None:
        if self._run is not None:
            self._run.quiet.halted = True

    # -- the end

    def _stopping(self, **_: Any) -> None:
        """Before users are stopped: those that publish end, and consumers get what is left."""
        runner = self._environment.runner
        self._halt()
        if self._run is None or isinstance(runner, WorkerRunner):
            return
        self._run.ended()
        if isinstance(runner, MasterRunner):
            runner.send_message(HALT)
        with suppress(gevent.Timeout), gevent.Timeout(self._run.options.drain):
            while not (self._is_quiet() and self._run.is_drained):
                gevent.sleep(LOOK)

    def _is_quiet(self) -> bool:
        """Whether nobody publishes any more."""
        runner = self._environment.runner
        if not isinstance(runner, MasterRunner):
            return self._run.quiet.is_so
        there = (name for name, each in runner.clients.items() if each.state != STATE_MISSING)
        return all(self._quiet.get(name, Quiet()).is_so for name in there)

    def _stop(self, **_: Any) -> None:
        """All is over: judge, and report."""
        run, self._run = self._run, None
        if run is None:
            return
        self._sampling.kill()
        thresholds = latest([*self._defaults(run), *run.options.bars])
        verdicts = judge(thresholds, run.figure)
        shape = self._environment.shape_class
        figures = report.gather(run, self._samples, verdicts, shape.knee if shape else None)
        path = Path(run.options.report)
        report.write(path, figures)
        print(report.text(figures), f"report: {path}", sep="\n", flush=True)
        # What locust would print now is the same in whole milliseconds.
        logging.getLogger("locust.stats_logger").setLevel(logging.WARNING)
        self._environment.process_exit_code = self._exit_code(all(each.kept for each in verdicts))

    def _defaults(self, run: Run) -> list[Threshold]:
        """What holds unless somebody says otherwise."""
        lost = [Threshold("lost", "", 0)] if run.consumes else []
        return [Threshold("failures", "", 0), *lost]

    def _exit_code(self, kept: bool) -> int | None:
        """None: what locust says of errors in the users themselves."""
        if not kept:
            return MISSED
        return None if self._environment.runner.exceptions else 0
