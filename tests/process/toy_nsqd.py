"""Master with toy engines: `python toy_nsqd.py SETTINGS`, where SETTINGS is JSON."""

import json
import os
import resource
import signal
import sys

from nsqcy.errors import StartError, Stop
from nsqcy.logging import logger
from nsqcy.net import listeners
from nsqcy.nsqd.master import launcher
from nsqcy.process import data_path_lock, spawn, systemd


def main():
    settings = json.loads(sys.argv[1])
    signal.pthread_sigmask(signal.SIG_BLOCK, spawn.BLOCKED)
    lines = logger.Log("[nsqd] ", logger.INFO)
    lock = data_path_lock.lock_data_path(settings["data_path"])
    try:
        bound = [listeners.bind(address, kind) for kind, address in settings["addresses"]]
    except Stop as stop:
        lines.fatal(str(stop))
        return 1
    notifier = systemd.notifier(os.environ, lines)
    context = {
        "log": {"prefix": "[nsqd] ", "level": logger.INFO, "format": "text"},
        "options": {},
        "toy": settings,
    }
    workers = settings["workers"]
    if "address_space" in settings:
        resource.setrlimit(resource.RLIMIT_AS, (settings["address_space"],) * 2)
    start = launcher.Launcher(workers, lock, context, "toy_engine:ToyEngine", lines)
    born = start.fork()

    from nsqcy.nsqd.master import live_options, master, worker_lifecycle
    from nsqcy.process import arbiter

    if "silence" in settings:
        arbiter.SILENCE = arbiter.Arbiter.__init__.__kwdefaults__["silence"] = settings["silence"]
        arbiter.GRACE = settings["silence"]
        arbiter.TICK = 0.1
    if "stop_limit" in settings:
        worker_lifecycle.STOP_LIMIT = settings["stop_limit"]
    if "files" in settings:
        resource.setrlimit(resource.RLIMIT_NOFILE, (settings["files"], settings["files"]))
    reread = lambda: live_options.Reread(logger.WARN)  # noqa: E731
    path = settings["data_path"]
    nsqd = master.Master(start, bound, path, lines, reread, notifier)
    show_workers(nsqd)
    return nsqd.run(born)


def show_workers(nsqd):
    """Make the master answer `!workers`, and carry out `!replace`."""
    called = nsqd._requests.called
    notified = nsqd._requests.notified

    def answer(index, request):
        if request.method == "DescribeWorkers":
            return nsqd._lifecycle.describe()
        return called(index, request)

    def note(index, request):
        if request.method != "ReplaceWorker":
            return notified(index, request)
        try:
            nsqd._lifecycle.replace_in_place(request.args["worker"])
        except StartError as error:
            print(error, file=sys.stderr)

    nsqd._requests.called = answer
    nsqd._requests.notified = note


if __name__ == "__main__":
    sys.exit(main())
