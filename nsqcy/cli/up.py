"""`nsqcy up`: run nsqlookupd, an nsqd that registers with it, and nsqadmin on this machine.

Owns the additional flags of the daemons, the start and stop order, and signal forwarding. Stops all
daemons when one exits. Starts each daemon as a command, and uses only its option table. The daemons
write their own log lines.

Exit codes:

    0  stopped by SIGTERM or SIGINT, and all daemons exited with status 0; --help; --version
    1  a daemon could not start, exited unexpectedly or failed (see the log)
    2  invalid command line
"""

import os
import select
import signal
from collections.abc import Sequence

from nsqcy.config import loader
from nsqcy.errors import NsqError, StartError, Stop, UsageError
from nsqcy.logging.logger import Log, write
from nsqcy.net import listeners
from nsqcy.nsqadmin.options import NSQADMIN, normal
from nsqcy.nsqd.options import NSQD
from nsqcy.nsqlookupd.options import NSQLOOKUPD
from nsqcy.process import spawn
from nsqcy.process.children import Child, how_it_ended

USAGE = """\
Usage: nsqcy up [FLAGS]

Runs nsqlookupd, an nsqd that registers with it, and nsqadmin until ^C or SIGTERM. By default they
listen on 127.0.0.1 at their usual ports, and nsqd keeps messages in ./data.

FLAGS are nsqd's flags (nsqd -help):

  --data-path=DIR             where nsqd keeps messages; created if missing
  --tcp-address=HOST:PORT     where nsqd serves clients
  --http-address=HOST:PORT    where nsqd serves its HTTP API
  --config=FILE               nsqd's configuration file

the flags of nsqlookupd (nsqlookupd -help) and nsqadmin (nsqadmin -help), prefixed with the name:

  --nsqlookupd-tcp-address=HOST:PORT
  --nsqlookupd-http-address=HOST:PORT
  --nsqadmin-http-address=HOST:PORT

and:

  --no-nsqadmin               run nsqlookupd and nsqd only
"""
WITHOUT_ADMIN = "no-nsqadmin"
TABLES = {"nsqlookupd": NSQLOOKUPD, "nsqd": NSQD, "nsqadmin": NSQADMIN}  # in start order
MODULES = {name: f"nsqcy.{name}.main" for name in TABLES}
PREFIXED = ("nsqlookupd", "nsqadmin")  # their flags are prefixed with their name

# Defaults that differ from the daemons' own.
DEFAULTS = {
    "nsqlookupd": {"tcp_address": "127.0.0.1:4160", "http_address": "127.0.0.1:4161"},
    "nsqd": {
        "tcp_address": "127.0.0.1:4150",
        "http_address": "127.0.0.1:4151",
        "https_address": "127.0.0.1:4152",
        "data_path": "data",
    },
    "nsqadmin": {"http_address": "127.0.0.1:4171"},
}

# The option that names nsqlookupds.
LOOKUPDS = {"nsqd": "lookupd_tcp_address", "nsqadmin": "lookupd_http_address"}

# The broadcast address is the host of this option, unless that is a wildcard.
BROADCAST = {"nsqlookupd": "http_address", "nsqd": "tcp_address"}
EVERYWHERE = ("", "0.0.0.0", "::")
HERE = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}


def main(argv: Sequence[str]) -> int:
    """Run the daemons; return the exit code."""
    if any(word in ("-h", "-help", "--help") for word in argv):
        write(1, USAGE)
        return 0
    # Block signals until we can forward them to the daemons.
    signal.pthread_sigmask(signal.SIG_BLOCK, spawn.BLOCKED)
    try:
        return Up(*(Plan(daemon, words) for daemon, words in split(argv).items())).run()
    except Stop as stop:
        return loader.report(stop, "nsqcy up")


def split(argv: Sequence[str]) -> dict[str, list[str]]:
    """Return the flags for each daemon to run."""
    found: dict[str, list[str]] = {name: [] for name in TABLES}
    words = list(reversed(argv))
    with_admin = True
    while words:
        word = words.pop()
        bare = word.lstrip("-")
        if bare == word or not bare:
            raise UsageError(f"unexpected argument: {word}\n{USAGE}")
        if bare == WITHOUT_ADMIN:
            with_admin = False
            continue
        daemon = next((name for name in PREFIXED if bare.startswith(f"{name}-")), "nsqd")
        flag = bare.removeprefix(f"{daemon}-")
        found[daemon].append(word[: len(word) - len(bare)] + flag)
        name, equals, _ = flag.partition("=")
        option = TABLES[daemon].by_flag.get(name)
        if words and option and not equals and not option.kind.bare:
            found[daemon].append(words.pop())
    if not with_admin:
        for flag in found.pop("nsqadmin"):
            name = flag.lstrip("-").partition("=")[0]
            raise UsageError(f"--nsqadmin-{name} and --{WITHOUT_ADMIN} cannot be combined\n{USAGE}")
    return found


class Plan:
    """Flags for starting one daemon: the flags given for it, and our defaults for the rest."""

    def __init__(self, daemon: str, words: list[str]) -> None:
        self.daemon = daemon
        self._settings = loader.load(TABLES[daemon], words)
        self._words = words
        given = self._settings.given
        self._values = {
            name: value for name, value in DEFAULTS[daemon].items() if name not in given
        }
        if daemon in BROADCAST and "broadcast_address" not in given:
            host = listeners.parse(self[BROADCAST[daemon]]).host
            if host not in EVERYWHERE:
                self._values["broadcast_address"] = host

    def __getitem__(self, name: str) -> str:
        return self._values.get(name) or str(self._settings[name])

    def flags(self, *lookupds: str) -> list[str]:
        """Return all flags, with these nsqlookupds added.

        They are not added if nsqds are configured: nsqadmin queries either nsqlookupds or nsqds.
        """
        values = list(self._values.items())
        if lookupds and "nsqd_http_address" not in self._settings.given:
            name = LOOKUPDS[self.daemon]
            values += [(name, each) for each in lookupds]
            if self._settings.where(name):
                # A list on the command line replaces the list in the file.
                others = self._settings[name]
                assert isinstance(others, tuple)
                values += [(name, str(each)) for each in others]
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in values]
        return [*flags, *self._words]


class End(NsqError):
    """A daemon exited although it was not requested to stop; str() names the daemon."""


class Up:
    """Supervises the daemons. `run` returns the exit code when all have exited."""

    def __init__(self, lookupd: Plan, nsqd: Plan, admin: Plan | None = None) -> None:
        self._lookupd = lookupd
        self._nsqd = nsqd
        self._admin = admin
        self._log = Log("[nsqcy up] ")
        self._children: list[Child] = []
        self._blamed: Child | None = None  # exited on its own
        self._asked_to_stop = False
        self._woken, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def run(self) -> int:
        _make_directory(self._nsqd["data_path"])
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(signum, lambda *_: None)  # we act on the byte in the pipe
        signal.pthread_sigmask(signal.SIG_UNBLOCK, spawn.BLOCKED)
        code = 0
        try:
            self._live()
        except End as end:
            self._log.fatal(f"{end}; stopping everything")
            code = 1
        while self._children:
            code = max(code, self._stop(self._children[-1]))
        return code

    def _live(self) -> None:
        """Start the daemons one by one; return if a stop signal arrives."""
        lookupd = self._start(self._lookupd)
        if not lookupd:
            return
        nsqd = self._start(self._nsqd, _reachable(lookupd.addresses["TCP"]))
        if not nsqd:
            return
        page = ""
        if self._admin is not None:
            admin = self._start(self._admin, _reachable(lookupd.addresses["HTTP"]))
            if not admin:
                return
            base = normal(self._admin["base_path"])
            page = f"http://{_reachable(admin.addresses['HTTP'])}{base}"
        write(1, welcome(nsqd.addresses, lookupd.addresses, self._nsqd["data_path"], page))
        while not self._asked_to_stop:
            self._turn()

    def _start(self, plan: Plan, *lookupds: str) -> Child | None:
        """Start a daemon and wait until it is ready; return None if a stop signal arrives first."""
        child = Child(plan.daemon, MODULES[plan.daemon], plan.flags(*lookupds))
        self._children.append(child)
        while not child.ready:
            if self._asked_to_stop:
                return None
            self._turn()
        return child

    def _turn(self) -> None:
        """Wait for an event and handle it. Raises End if a daemon has exited."""
        self._listen()
        for child in self._children:
            code = child.process.poll()
            if code is not None and not self._asked_to_stop:
                self._blamed = child
                early = "" if child.ready else " before it was ready"
                raise End(f"{child.name} {how_it_ended(code)}{early}")

    def _listen(self) -> None:
        watched: list[int | Child] = [self._woken, *self._children]
        for each in select.select(watched, [], [])[0]:
            if isinstance(each, Child):
                each.hear()
            else:
                self._take(os.read(self._woken, 512))

    def _take(self, signals: bytes) -> None:
        if signal.SIGTERM in signals or signal.SIGINT in signals:
            self._asked_to_stop = True
        if signal.SIGHUP in signals:
            for child in self._children:
                child.process.send_signal(signal.SIGHUP)

    def _stop(self, child: Child) -> int:
        """Stop a daemon without a time limit: nsqd saves its messages and kills hung workers."""
        child.process.terminate()
        while (code := child.process.poll()) is None:
            self._listen()
        if code and child is not self._blamed:
            self._log.error(f"{child.name} {how_it_ended(code)} during shutdown")
        self._children.remove(child)
        child.close()
        return 1 if code else 0


def _make_directory(path: str) -> None:
    try:
        os.makedirs(path or ".", exist_ok=True)
    except OSError as error:
        reason = (error.strerror or "cannot be created").lower()
        raise StartError(f"failed to create data-path - {path}: {reason}") from None


def _reachable(address: str) -> str:
    """Return an address for clients on this machine: a wildcard becomes the loopback address."""
    host, _, port = address.rpartition(":")
    return f"{HERE.get(host, host)}:{port}"


def welcome(nsqd: dict[str, str], lookupd: dict[str, str], data_path: str, page: str) -> str:
    """Return the text shown when all daemons are ready. `page`: nsqadmin's URL, or empty."""
    lines = ["", f"  nsqd:       {_shown(nsqd)}, data in {data_path or '.'}"]
    lines += [f"  nsqlookupd: {_shown(lookupd)}"]
    lines += [f"  nsqadmin:   {page}"] if page else []
    lines += ["", "  Ctrl-C stops everything and saves all messages."]
    http = _reachable(nsqd.get("HTTP", ""))
    if not http.startswith(("/", ":")):
        lines[-1] += " In another terminal:"
        lines += ["", f"    curl -d 'hello' 'http://{http}/pub?topic=greetings'"]
        lines += [f"    curl 'http://{http}/stats'"]
        lines += [f"    curl 'http://{_reachable(lookupd['HTTP'])}/lookup?topic=greetings'"]
    return "\n".join([*lines, "", ""])


def _shown(addresses: dict[str, str]) -> str:
    return ", ".join(f"{title} on {address}" for title, address in addresses.items())
