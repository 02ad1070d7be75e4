"""Number of users over time, for locust: the shapes in stages.py with the values of the flags."""

from typing import Any

from locust import LoadTestShape

from loadtest.swarm.consumers import ConsumeUser
from loadtest.swarm.options import Options
from loadtest.swarm.run import Run
from loadtest.swarm.stages import Knee, Step, users_at

FASTEST = 100  # maximum users per second that locust starts without a warning


class Shape(LoadTestShape):
    """The only shape class, so that -u and -t mean the same for all shapes; -r applies where a
    shape does not set the rate itself."""

    use_common_options = True

    def __init__(self) -> None:
        super().__init__()
        self.knee: Knee | None = None  # knee of the running or the last test
        self._options: Options | None = None

    def reset_time(self) -> None:
        """Called when a test begins."""
        super().reset_time()
        self._options = None

    def tick(self) -> tuple[int, float] | None:
        """Return the number of users, and how many may start per second."""
        assert self.runner is not None
        parsed: Any = self.runner.environment.parsed_options
        maximum = parsed.num_users or 1
        if self._options is None:
            self._options = self._begin(Options.of(parsed), maximum)
        users = self._users(self._options.shape, maximum, parsed.run_time or None)
        if users is None:
            return None
        if self._options.shape == "steady" and parsed.spawn_rate:
            return users, parsed.spawn_rate
        return users, min(users, FASTEST)

    def _users(self, shape: str, maximum: int, seconds: float | None) -> int | None:
        elapsed = self.get_run_time()
        if self.knee is None:
            return users_at(shape, elapsed, maximum, seconds)
        return None if seconds and elapsed >= seconds else self.knee.tick(elapsed)

    def _begin(self, options: Options, maximum: int) -> Options:
        # Called before locust decides which users to start, so that it starts these first.
        ConsumeUser.fixed_count = options.consumers
        self.knee = None
        if options.shape == "knee":
            self.knee = Knee(
                options.knee_step_users,
                options.knee_step_seconds,
                maximum,
                options.knee_p99,
                options.knee_failures,
                _measure,
            )
        return options


def _measure(users: int, since: float, until: float) -> Step:
    return Run.current.step(users, since, until)
