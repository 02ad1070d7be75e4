"""An nsqd that replaces all of its workers in place, one after the other, when it gets SIGUSR1.

Run as a program, this is nsqd. It is also the engine of its workers, so that a worker, or its
successor, can be killed at a step of the hand-over: the file that STEP_FILE names contains the
step.
"""

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

from nsqcy.nsqd import upgrade_steps
from nsqcy.testing.http_requests import eventually
from support.nsqd_process import Nsqd, flags

STEP_FILE = "NSQCY_TEST_STEP_FILE"


class ReplacingNsqd(Nsqd):
    """An nsqd under test whose workers can be replaced."""

    def __init__(self, data: Path, **options: Any) -> None:
        tests = str(Path(__file__).parents[1])
        self.step_file = data.with_name("step")
        super().__init__(
            data,
            environ={
                "PYTHONPATH": os.pathsep.join([str(Path(tests).parent), tests]),
                STEP_FILE: str(self.step_file),
            },
            **options,
        )

    def launch(self) -> None:
        words = [sys.executable, "-m", "support.replaced_workers", *flags(self.options)]
        self._spawn(words, cwd=self.data, env=os.environ | self.environ)

    def begin_replacements(self) -> None:
        """Begin to replace all workers."""
        self.process.send_signal(signal.SIGUSR1)

    def replace(self) -> list[str]:
        """Replace all workers; return the log lines about it."""
        begin = len(self.log_text())
        self.begin_replacements()
        return self.await_replacements(begin)

    def await_replacements(self, begin: int = 0) -> list[str]:
        """Wait until the replacements that began at this place of the log have ended; return its
        lines about them."""

        def ended() -> bool:
            assert self.alive(), self.log_text()
            return "replacements have ended" in self.log_text()[begin:]

        eventually(ended, 60.0)
        lines = self.log_text()[begin:].splitlines()
        return [line for line in lines if "replaced" in line]

    def kill_at(self, step: str) -> None:
        """Kill the next process that reaches a step of a hand-over."""
        self.step_file.write_text(step)


def _reached(step: str) -> None:
    path = Path(os.environ[STEP_FILE])
    with contextlib.suppress(FileNotFoundError):  # another process has reached its step
        if path.read_text() == step:
            path.unlink()
            os.kill(os.getpid(), signal.SIGKILL)


def run() -> int:
    """Run nsqd."""
    from nsqcy.nsqd import main
    from nsqcy.nsqd.master.launcher import Launcher

    class ReplacingLauncher(Launcher):
        def fork(self) -> Any:
            born = super().fork()
            _watch_signal()
            return born

    main.Launcher = ReplacingLauncher  # type: ignore[misc]
    main.ENGINE = "support.replaced_workers:Engine"
    return main.main()


def _watch_signal() -> None:
    import gevent

    from nsqcy.errors import StartError
    from nsqcy.nsqd.master.master import Master

    watch = Master._watch_signals

    def replace_all(master: Any) -> None:
        for index in range(master._launcher.workers):
            master._lifecycle.await_copies()
            try:
                master._lifecycle.replace_in_place(index)
            except StartError as error:
                print(error, file=sys.stderr)
        master._lifecycle.await_copies()
        master._log.info("replacements have ended")

    def watch_more(master: Any) -> None:
        watch(master)
        watcher = gevent.get_hub().loop.signal(signal.SIGUSR1)
        watcher.start(gevent.spawn, replace_all, master)
        master._watchers.append(watcher)

    Master._watch_signals = watch_more  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.exit(run())
elif STEP_FILE in os.environ:
    from nsqcy.nsqd.worker.engine import Engine, prepare  # noqa: F401

    upgrade_steps.reached = _reached
