"""`nsqcy up`: run nsqlookupd, nsqds that register with it, and nsqadmin on this machine.

Owns the additional flags of the daemons, the order of start and stop, and the forwarding of
signals. Stops all daemons when one exits, unless it is one of several nsqds. Starts each daemon as
a command, and depends only on the daemon's option table. The daemons write their own log lines.

Exit codes:

    0  stopped by SIGTERM or SIGINT, and all daemons exited with status 0; --help; --version
    1  a daemon could not start, exited unexpectedly or failed (see the log)
    2  invalid command line
"""

import os
import select
import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from tempfile import TemporaryDirectory

from nsqcy.cli import demo_cluster, welcome
from nsqcy.cli.demo_cluster import Etcd, Shared
from nsqcy.cli.welcome import Node, reachable
from nsqcy.config import hints, loader
from nsqcy.config.durations import SECOND
from nsqcy.errors import NsqError, StartError, Stop, UsageError
from nsqcy.logging.logger import Log
from nsqcy.net import listeners
from nsqcy.nsqadmin.options import NSQADMIN, normal
from nsqcy.nsqd.options import NSQD
from nsqcy.nsqlookupd.options import NSQLOOKUPD
from nsqcy.process import spawn
from nsqcy.process.children import Child, Program, how_it_ended
from nsqcy.util.standard_streams import show

USAGE = """\
Usage: nsqcy up [FLAGS]

Runs nsqlookupd, an nsqd that registers with it, and nsqadmin until ^C or SIGTERM. By default they
listen on 127.0.0.1 at their default ports, and nsqd keeps messages in ./data.

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

  --demo                      also run a shop's producers and consumers, to watch in nsqadmin
  --no-nsqadmin               run nsqlookupd and nsqd only
  --nodes=N                   run N nsqds that keep copies of each other's messages, and etcd

With --demo, nsqd keeps messages in a temporary directory, unless its data path is set, and the
daemons log only warnings, unless their log level is set.

With --nodes, each topic has up to 3 copies. Node I listens on nsqd's ports + 100 * I and keeps its
messages in DIR/nodeI. If a node is killed, it is restarted only after other nodes have taken over
its topics. If its directory was deleted, it starts empty. etcd must be installed, unless
--etcd-endpoints=URL names an existing one.
"""
WITHOUT_ADMIN = "no-nsqadmin"
DEMO = "demo"
SEE_HELP = "; see nsqcy up --help"
DEMO_MODULE = "nsqcy.cli.demo"
TABLES = {"nsqlookupd": NSQLOOKUPD, "nsqd": NSQD, "nsqadmin": NSQADMIN}  # in start order
MODULES = {name: f"nsqcy.{name}.main" for name in TABLES}
PREFIXED = ("nsqlookupd", "nsqadmin")  # flags of these daemons begin with the daemon's name

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

# The option for the addresses of nsqlookupds.
LOOKUPDS = {"nsqd": "lookupd_tcp_address", "nsqadmin": "lookupd_http_address"}

# The broadcast address is the host of this option, unless that is a wildcard.
BROADCAST = {"nsqlookupd": "http_address", "nsqd": "tcp_address"}
EVERYWHERE = ("", "0.0.0.0", "::")
ETCD_INTERVAL = 0.1  # seconds between checks of etcd's readiness
RESTART_LEASES = 3  # lease durations until a killed node is restarted
DRAINED = (0, 3)  # exit codes of an nsqd after a drain: empty, or its time limit has passed


def main(argv: Sequence[str]) -> int:
    """Run the daemons; return the exit code."""
    if any(word in ("-h", "-help", "--help") for word in argv):
        show(USAGE)
        return 0
    # Block signals until we can forward them to the daemons.
    signal.pthread_sigmask(signal.SIG_BLOCK, spawn.BLOCKED)
    try:
        with ExitStack() as stack:
            return _up(argv, stack).run()
    except Stop as stop:
        return loader.report(stop, "nsqcy up")


def _up(argv: Sequence[str], stack: ExitStack) -> "Up":
    """Return the plan that the command line describes. `stack`: removes the temporary directory, if
    any."""
    demo, words = _demo_taken(argv)
    count, rest = demo_cluster.taken(words)
    plans = {name: Plan(name, flags) for name, flags in split(rest).items()}
    nsqd = plans["nsqd"]
    is_temporary = False
    if demo:
        for plan in plans.values():
            plan.default("log_level", "warn")  # keeps the welcome text on the screen
        directory = stack.enter_context(TemporaryDirectory(prefix="nsqcy-demo-"))
        is_temporary = nsqd.default("data_path", directory)
    shared = nsqd.shared(count) if count > 1 else None
    return Up(
        plans["nsqlookupd"],
        [nsqd.node(index, shared) for index in range(count)] if shared else [nsqd],
        plans.get("nsqadmin"),
        shared,
        demo=demo,
        is_temporary=is_temporary,
    )


def _demo_taken(argv: Sequence[str]) -> tuple[bool, list[str]]:
    """Return whether the demo was requested, and the remaining arguments."""
    rest = [word for word in argv if word not in (f"-{DEMO}", f"--{DEMO}")]
    return len(rest) < len(argv), rest


def split(argv: Sequence[str]) -> dict[str, list[str]]:
    """Return the flags for each daemon to run."""
    found: dict[str, list[str]] = {name: [] for name in TABLES}
    words = list(reversed(argv))
    with_admin = True
    while words:
        word = words.pop()
        bare = word.lstrip("-")
        if bare == word or not bare:
            raise UsageError(f"unexpected argument: {word}{SEE_HELP}")
        if bare == WITHOUT_ADMIN:
            with_admin = False
            continue
        daemon = next((name for name in PREFIXED if bare.startswith(f"{name}-")), "nsqd")
        flag = bare.removeprefix(f"{daemon}-")
        found[daemon].append(word[: len(word) - len(bare)] + flag)
        name, equals, _ = flag.partition("=")
        option = TABLES[daemon].by_flag.get(name)
        if option is None:
            name = bare.partition("=")[0]
            hint = hints.similar_flag(name, _all_flags()) or SEE_HELP
            raise UsageError(f"flag provided but not defined: -{name}{hint}")
        if words and not equals and not option.kind.bare:
            found[daemon].append(words.pop())
    if not with_admin:
        for flag in found.pop("nsqadmin"):
            name = flag.lstrip("-").partition("=")[0]
            raise UsageError(f"--nsqadmin-{name} and --{WITHOUT_ADMIN} cannot be combined")
    return found


def _all_flags() -> list[str]:
    prefixed = [f"{name}-{flag}" for name in PREFIXED for flag in TABLES[name].by_flag]
    return [*NSQD.by_flag, *prefixed, WITHOUT_ADMIN, DEMO, demo_cluster.FLAG]


class Plan:
    """Flags for starting one daemon: the flags given for it, and our defaults for the rest."""

    def __init__(self, daemon: str, words: list[str]) -> None:
        self.daemon = self.name = daemon
        self._settings = loader.load(TABLES[daemon], words)
        self._words = words
        self._last: dict[str, str] = {}  # override the given flags
        given = self._settings.given
        self._values = {
            name: value for name, value in DEFAULTS[daemon].items() if name not in given
        }
        if daemon in BROADCAST and "broadcast_address" not in given:
            host = listeners.parse(self[BROADCAST[daemon]]).host
            if host not in EVERYWHERE:
                self._values["broadcast_address"] = host

    def __getitem__(self, name: str) -> str:
        return self._last.get(name) or self._values.get(name) or str(self._settings[name])

    def default(self, name: str, value: str) -> bool:
        """Replace an option's default; return False if the option is given."""
        if name in self._settings.given:
            return False
        self._values[name] = value
        return True

    def shared(self, count: int) -> Shared:
        """Return the files and flags that several nsqds share. Raises Stop."""
        return Shared(self._settings, self["data_path"], count)

    def node(self, index: int, shared: Shared) -> "Plan":
        """Return the plan for one of several nsqds. Raises UsageError."""
        plan = Plan(self.daemon, self._words)
        plan.name = f"node{index}"
        plan._values = dict(self._values)
        plan._last = demo_cluster.overrides(self._settings, self._values, index)
        plan._values |= shared.flags()
        return plan

    @property
    def lease(self) -> float:
        """Seconds after which other nsqds take over an nsqd's topics."""
        lease = self._settings["copies_lease"]
        assert isinstance(lease, int)
        return lease / SECOND

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
        return [*_flags(values), *self._words, *_flags(self._last.items())]


def _flags(values: Iterable[tuple[str, str]]) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in values]


class End(NsqError):
    """A daemon exited although no stop was requested; str() names the daemon."""


class Up:
    """Supervises the daemons. `run` returns the exit code when all have exited."""

    def __init__(
        self,
        lookupd: Plan,
        nsqds: Sequence[Plan],
        admin: Plan | None = None,
        shared: Shared | None = None,
        *,
        demo: bool = False,
        is_temporary: bool = False,
    ) -> None:
        """is_temporary: the messages will be deleted after the stop."""
        self._lookupd = lookupd
        self._nsqds = nsqds
        self._admin = admin
        self._shared = shared  # None for a single nsqd
        self._demo = demo
        self._is_temporary = is_temporary
        self._load: Child | None = None  # the running demo
        self._log = Log("[nsqcy up] ")
        self._children: list[Child] = []
        self._nodes: dict[Child, Plan] = {}  # running nsqds; empty for a single one
        self._due: dict[str, tuple[float, Plan]] = {}  # nsqds to be restarted, and when
        self._has_started = False  # whether all daemons have been ready
        self._lookupd_address = ""
        self._terminated: set[Child] = set()
        self._blamed: Child | None = None  # the daemon that exited on its own
        self._asked_to_stop = False
        self._woken, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def run(self) -> int:
        for plan in self._nsqds:
            _make_directory(plan["data_path"])
        if self._shared is not None:
            _write(self._shared)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(signum, lambda *_: None)  # the signal's byte in the pipe is handled
        signal.pthread_sigmask(signal.SIG_UNBLOCK, spawn.BLOCKED)
        code = 0
        try:
            self._live()
        except End as end:
            self._log.fatal(f"{end}; stopping everything")
            code = 1
        if self._load is not None:
            code = max(code, self._stop(self._load))
        for child in self._nodes:
            self._terminate(child)
        while self._children:
            code = max(code, self._stop(self._children[-1]))
        return code

    def _live(self) -> None:
        """Start the daemons one by one; return if a stop signal arrives."""
        if self._shared is not None and self._shared.etcd is not None:
            # Before any daemon that may listen on a free port: etcd's are chosen already.
            self._start_etcd(self._shared.etcd)
        if self._asked_to_stop:
            return
        lookupd = self._start(self._lookupd)
        if not self._await(lookupd):
            return
        self._lookupd_address = reachable(lookupd.addresses["TCP"])
        started = [self._start(plan, self._lookupd_address) for plan in self._nsqds]
        if self._shared is not None:
            self._nodes = dict(zip(started, self._nsqds, strict=True))
        if not self._await(*started):
            return
        page = ""
        if self._admin is not None:
            admin = self._start(self._admin, reachable(lookupd.addresses["HTTP"]))
            if not self._await(admin):
                return
            base = normal(self._admin["base_path"])
            page = f"http://{reachable(admin.addresses['HTTP'])}{base}"
        if self._demo and not self._await(self._start_demo(started)):
            return
        self._welcome(lookupd, started, page)
        self._has_started = True
        while not self._asked_to_stop:
            self._restart_nodes()
            self._turn()

    def _welcome(self, lookupd: Child, nsqds: Sequence[Child], page: str) -> None:
        paths = [plan["data_path"] for plan in self._nsqds]
        if self._shared is None:
            about = welcome.daemons(nsqds[0].addresses, paths[0], lookupd.addresses)
            commands = welcome.commands(nsqds[0].addresses, lookupd.addresses)
        else:
            rows = [
                Node(each.name, each.addresses, path, each.process.pid)
                for each, path in zip(nsqds, paths, strict=True)
            ]
            etcd = self._shared.etcd
            where = f"{etcd.url}, log in {etcd.log}" if etcd else ""
            about = welcome.nodes(rows, where, lookupd.addresses)
            lease = self._nsqds[0].lease
            commands = welcome.commands_for_nodes(rows, lookupd.addresses, lease)
        if not self._demo:
            show(about + welcome.admin(page) + commands)
        else:
            show(about + welcome.demo(page, is_temporary=self._is_temporary))

    def _start(self, plan: Plan, *lookupds: str) -> Child:
        child = Child(plan.name, MODULES[plan.daemon], plan.flags(*lookupds))
        self._children.append(child)
        return child

    def _start_demo(self, nsqds: Sequence[Child]) -> Child:
        kinds = ("TCP", "HTTP")
        words = [
            "=".join(reachable(nsqd.addresses.get(kind, "")) for kind in kinds) for nsqd in nsqds
        ]
        self._load = Child("demo", DEMO_MODULE, words)
        self._children.append(self._load)
        return self._load

    def _start_etcd(self, etcd: Etcd) -> None:
        """Start etcd and wait until it is ready, or until a stop signal arrives."""
        with etcd.log.open("ab") as log:
            child = Program(
                f"etcd (log in {etcd.log})", etcd.program, etcd.flags(), stderr=log.fileno()
            )
        self._children.append(child)
        while not self._asked_to_stop and not child.ready:
            self._turn(ETCD_INTERVAL)
            child.ready = child.ready or etcd.is_ready()

    def _await(self, *children: Child) -> bool:
        """Wait until daemons are ready; return False if a stop signal arrives first."""
        while not all(child.ready for child in children):
            if self._asked_to_stop:
                return False
            self._turn()
        return not self._asked_to_stop

    def _turn(self, timeout: float | None = None) -> None:
        """Wait for an event and handle it; raises End if a daemon exited."""
        self._listen(timeout)
        for child in list(self._children):
            code = child.process.poll()
            if code is not None and not self._asked_to_stop:
                early = "" if child.ready else " before it was ready"
                if child in self._nodes and (child.ready or self._has_started):
                    plan, how = self._nodes.pop(child), f"{how_it_ended(code)}{early}"
                    if code in DRAINED and child.ready:
                        self._log.warn(f"{plan.name} {how}; not restarting it")
                    else:
                        self._restart_later(plan, how)
                    self._children.remove(child)
                    child.close()
                    continue
                self._blamed = child
                raise End(f"{child.name} {how_it_ended(code)}{early}")

    def _restart_later(self, plan: Plan, how: str) -> None:
        delay = RESTART_LEASES * plan.lease
        self._log.warn(f"{plan.name} {how}; restarting it in {delay:.0f}s")
        self._due[plan.name] = (time.monotonic() + delay, plan)

    def _restart_nodes(self) -> None:
        """Start the nodes that are due. A node whose directory is lost starts empty."""
        for name, (due, plan) in list(self._due.items()):
            if time.monotonic() >= due:
                del self._due[name]
                try:
                    _make_directory(plan["data_path"])
                except StartError as error:
                    self._restart_later(plan, str(error))
                    continue
                self._nodes[self._start(plan, self._lookupd_address)] = plan

    def _listen(self, timeout: float | None = None) -> None:
        if timeout is None and self._due:
            first = min(due for due, _ in self._due.values())
            timeout = max(0.0, first - time.monotonic())
        watched: list[int | Child] = [self._woken, *self._children]
        for each in select.select(watched, [], [], timeout)[0]:
            if isinstance(each, Child):
                each.hear()
            else:
                self._take(os.read(self._woken, 512))

    def _take(self, signals: bytes) -> None:
        if signal.SIGTERM in signals or signal.SIGINT in signals:
            self._asked_to_stop = True
        if signal.SIGHUP in signals:
            for child in self._children:
                if not isinstance(child, Program):
                    child.process.send_signal(signal.SIGHUP)

    def _terminate(self, child: Child) -> None:
        if child not in self._terminated:
            self._terminated.add(child)
            child.process.terminate()

    def _stop(self, child: Child) -> int:
        """Stop a daemon without a time limit: nsqd saves its messages and kills hung workers."""
        self._terminate(child)
        while (code := child.process.poll()) is None:
            self._listen()
        if isinstance(child, Program) and code == -signal.SIGTERM:
            code = 0  # how etcd exits on SIGTERM
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


def _write(shared: Shared) -> None:
    try:
        shared.write()
    except OSError as error:
        reason = (error.strerror or "cannot be written").lower()
        raise StartError(f"failed to write {error.filename}: {reason}") from None
