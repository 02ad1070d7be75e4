"""Cases about elapsed time: slow cases wait at the same time, and durations are checked."""

import threading
import time
from collections.abc import Callable


def lasted(start: float, seconds: float, slack: float) -> None:
    """Check that this time has passed since `start` (see Conn.clock): not less, and not much
    more."""
    elapsed = time.monotonic() - start
    assert seconds <= elapsed < seconds + slack, f"{elapsed} s instead of {seconds} s"


def together(*stories: Callable[[], object], timeout: float = 120.0) -> None:
    """Run every case in its own thread; raise all failures, each under its name."""
    failures: list[Exception] = []

    def run(story: Callable[[], object]) -> None:
        try:
            story()
        except Exception as failure:
            failure.add_note(f"in story {getattr(story, '__name__', story)}")
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(story,), daemon=True) for story in stories]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout)
    stuck = [thread for thread in threads if thread.is_alive()]
    if failures:
        raise ExceptionGroup("failed cases", failures)
    assert not stuck, f"{len(stuck)} cases did not finish"
