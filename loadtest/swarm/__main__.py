"""A load test against a private cluster that is started before the test and stopped after it.

python -m loadtest.swarm [--nsqds N] [--workers N] [LOCUST FLAGS] [USERS]

Starts an nsqlookupd, the nsqds with their workers, and locust with this package's locustfile, which
checks the thresholds. The exit code is locust's. Without other flags it runs a minute of mixed
load.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from loadtest.swarm.options import ENV
from nsqcy.testing import nsqd, nsqlookupd

LOCUSTFILE = Path(__file__).with_name("locustfile.py")
ROOT = Path(__file__).parents[2]
DEFAULTS = {"--users": "20", "--spawn-rate": "10", "--run-time": "60s", "--loglevel": "WARNING"}
SHORT = {"-u": "--users", "-r": "--spawn-rate", "-t": "--run-time", "-L": "--loglevel"}
WEB = ("--web-port", "--web-host", "--autostart", "--headful")  # request locust's web page


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.swarm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="What else locust understands: locust -f loadtest/swarm/locustfile.py --help",
        allow_abbrev=False,
    )
    parser.add_argument("--nsqds", type=int, default=1, help="how many nsqds")
    parser.add_argument("--workers", type=int, default=1, help="worker processes of each nsqd")
    args, words = parser.parse_known_args(argv)
    with contextlib.ExitStack() as stack:
        lookupd = stack.enter_context(nsqlookupd())
        nsqds = [
            stack.enter_context(nsqd(lookupd_tcp_address=lookupd.tcp_address, workers=args.workers))
            for _ in range(args.nsqds)
        ]
        found = {
            "LOOKUPD_HTTP_ADDRESS": lookupd.http_address,
            "NSQD_HTTP_ADDRESS": ",".join(each.http_address for each in nsqds),
        }
        environment = os.environ | {ENV + name: value for name, value in found.items()}
        environment["PYTHONPATH"] = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}".rstrip(":")
        command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), *with_defaults(words)]
        return run(command, environment)


def run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run locust until it exits; return its exit code.

    On Ctrl-C, which also reaches locust directly, locust writes its report. On SIGTERM, locust
    would not write the report while a shape is running, so it receives an interrupt instead.
    """
    signal.signal(signal.SIGINT, lambda *_: None)  # locust must also receive the signal
    locust = subprocess.Popen(command, env=environment)
    signal.signal(signal.SIGTERM, lambda *_: locust.send_signal(signal.SIGINT))
    return locust.wait()


def with_defaults(words: Sequence[str]) -> list[str]:
    """Return the default flags that the command line does not set. With locust's web page, there is
    no default run."""
    said = {word.partition("=")[0] for word in words}
    said |= {SHORT[each] for each in said & SHORT.keys()}
    left = [f"{name}={value}" for name, value in DEFAULTS.items() if name not in said]
    if not said & set(WEB):
        left += [each for each in ("--headless", "--only-summary") if each not in said]
    return [*left, *words]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
