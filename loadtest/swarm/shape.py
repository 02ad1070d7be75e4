"""How many users there are, for locust: the shapes of stages.py with the numbers of the flags."""

from locust import LoadTestShape

from loadtest.swarm.options import Options
from loadtest.swarm.run import Run
from loadtest.swarm.stages import Knee, Step, users_at
from loadtest.swarm.users import ConsumeUser

FASTEST = 100  # users a second that locust starts without complaint


class Shape(LoadTestShape):
    """The only one, so that -u, -r and -t mean what they say for all of them."""

    use_common_options = True

    def __init__(self) -> None:
        super().__init__()
        self.knee: Knee | None = None  # of the test that runs, or of the last one
        self._options: Options | None = None

    def reset_time(self) -> None:
        """A test begins."""
        super().reset_time()
        self._options = None

    def tick(self) -> tuple[int, float] | None:
        """Users there are to be, and how many a second may start."""
        parsed = self.runner.environment.parsed_options
        most = parsed.num_users or 1
        if self._options is None:
            self._begin(Options.of(parsed), most)
        elapsed, seconds = self.get_run_time(), parsed.run_time or None
        if self.knee is None:
            users = users_at(self._options.shape, elapsed, most, seconds)
        elif seconds and elapsed >= seconds:
            users = None
        else:
            users = self.knee.tick(elapsed)
        return None if users is None else (users, parsed.spawn_rate or min(users, FASTEST))

    def _begin(self, options: Options, most: int) -> None:
        self._options = options
        # Before locust makes up its mind whom to start: it starts these first.
        ConsumeUser.fixed_count = options.consumers
        self.knee = None
        if options.shape == "knee":
            self.knee = Knee(
                options.knee_step_users,
                options.knee_step_seconds,
                most,
                options.knee_p99,
                options.knee_failures,
                _measure,
            )


def _measure(users: int, since: float, until: float) -> Step:
    return Run.current.step(users, since, until)
