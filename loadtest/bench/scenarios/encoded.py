"""Connections with TLS, snappy and deflate; and TLS connections on a worker that does not own the
topic."""

import datetime
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from loadtest.bench import floor, load, procfs
from loadtest.bench.daemon import Daemon, NotOffered
from loadtest.bench.speed import BATCH, READY, Result, Settings, beside, measure, publish
from nsqcy.nsqd.master.placement import Placement

WAYS = ("", "tls", "snappy", "deflate", "tls+snappy")
PUBLISHERS = 16
RATE = 20_000  # messages per second
MAX_TRIES = 64  # maximum connection attempts to reach the desired worker


@contextmanager
def certificate() -> Iterator[dict[str, Path]]:
    """Return the options for a daemon with a certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "bench")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    with tempfile.TemporaryDirectory(prefix="nsqcy-bench-") as folder:
        files = {"tls_cert": Path(folder) / "cert.pem", "tls_key": Path(folder) / "key.pem"}
        files["tls_cert"].write_bytes(made.public_bytes(pem))
        secret = key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        files["tls_key"].write_bytes(secret)
        yield files


def encoded(settings: Settings) -> Iterator[Result]:
    """Measure each kind of work without an encoding and with each encoding, alternately."""
    with (
        certificate() as options,
        settings.nsqd(**options) as nsqd,
        grounds(settings, options) as floors,
    ):
        ways = [way for way in WAYS if is_offered(nsqd, way)]
        for _ in each_kind(settings, nsqd, None, ""):
            pass  # warm-up: the daemon recycles memory afterwards
        for _ in settings.rounds():
            plain: dict[str, float] = {}
            for way in ways:
                for kind, result in each_kind(settings, nsqd, floors.get(way), way):
                    ratio = result.daemon_us / plain.setdefault(kind, result.daemon_us)
                    result.figures["ratio"] = ratio
                    result.note = f"{ratio:.2f} x plain"
                    yield result


def is_offered(nsqd: Daemon, way: str) -> bool:
    try:
        load.producer(nsqd.tcp, way).close()
    except NotOffered:
        return False
    return True


@contextmanager
def grounds(settings: Settings, options: dict[str, Path]) -> Iterator[dict[str, Daemon]]:
    """Yield the floors by encoding; the floor with TLS is omitted if it cannot be compiled."""
    with ExitStack() as stack:
        found = {"": stack.enter_context(settings.floor())}
        with suppress(NotOffered):
            files = options["tls_cert"], options["tls_key"]
            found["tls"] = stack.enter_context(floor.running(settings.size, files))
        yield found


def each_kind(
    settings: Settings, nsqd: Daemon, ground: Daemon | None, way: str
) -> Iterator[tuple[str, Result]]:
    """Publish one by one and in batches, then consume; measure the floor after each."""
    singles, messages = settings.count(60_000), settings.count(400_000)
    steady = settings.count(2 * RATE)
    name = way or "plain"
    producer, consumer = partial(load.producer, way=way), partial(load.consumer, way=way)
    one, batch = load.pub, load.mpub

    def waiting(server: Daemon, topic: str) -> Result:
        with load.Team(1) as team:
            work = partial(load.waiting, open=producer)
            team.add(work, server.tcp, [one(topic, settings.body)], 1, singles, PUBLISHERS)
            return measure(f"PUB, wait for OK, {PUBLISHERS} conn, {name}", server, team)[0]

    def paced(server: Daemon, topic: str) -> Result:
        # Unlike in `waiting`, every encoding has the same number of messages per event-loop
        # iteration.
        with load.Team(1) as team:
            work = partial(load.paced, open=producer)
            team.add(work, server.tcp, topic, settings.size, RATE, steady)
            return measure(f"PUB at {RATE // 1000} k/s, 1 conn, {name}", server, team)[0]

    def batches(server: Daemon, topic: str) -> Result:
        with load.Team(1) as team:
            work = partial(load.pipelined, open=producer)
            command = batch(topic, [settings.body] * BATCH)
            team.add(work, server.tcp, command, BATCH, messages // BATCH, 8)
            return measure(f"MPUB x200, 1 conn, {name}", server, team)[0]

    def consuming(server: Daemon, topic: str) -> Result:
        with load.Team(1) as team:
            work = partial(load.finishing, open=consumer)
            team.add(work, server.tcp, topic, READY, singles + steady + messages, slice(0, 1), 0)
            return measure(f"SUB+FIN RDY 2500, 1 conn, {name}", server, team)[0]

    with settings.topic(nsqd) as topic:
        for work in waiting, paced, batches, consuming:
            result = work(nsqd, topic)
            if ground is not None:
                result = beside(result, work(ground, topic))
            yield work.__name__, result


def foreign(settings: Settings) -> Iterator[Result]:
    """Measure a TLS consumer whose topic is on another worker, and one whose topic is on its
    own."""
    if settings.target is not None:
        raise NotOffered("nobody knows which process has which topic")
    messages = settings.count(400_000)
    with certificate() as options, settings.nsqd(2, move_sessions="false", **options) as nsqd:
        topic = "bench"
        owner = nsqd.pids[1:][Placement(2).place(topic)]
        for _ in settings.rounds():
            at_home = 0.0
            for home in (True, False):
                publish(settings, nsqd, topic, messages)
                result = tls_consumer(nsqd, topic, messages, owner, home)
                at_home = at_home or result.daemon_us
                if not home:
                    result.figures["ratio"] = result.daemon_us / at_home
                    result.order = "ratio"
                    result.note = f"{result.daemon_us / at_home:.2f} x own worker"
                yield result


def tls_consumer(nsqd: Daemon, topic: str, messages: int, owner: int, home: bool) -> Result:
    spare = []
    for _ in range(MAX_TRIES):
        sock = load.connect(nsqd.tcp, "tls")
        if (procfs.holder(nsqd.pids, sock.getsockname()[1]) == owner) is home:
            break
        spare.append(sock)
    else:
        raise RuntimeError("no connection has its home where it is wanted")

    with load.Team(1) as team:
        work = partial(load.finishing, open=lambda _, *place: load.subscribe(sock, *place))
        team.add(work, nsqd.tcp, topic, READY, messages, slice(0, 1), 0)
        where = "its own" if home else "another"
        result = measure(f"TLS consumer, topic on {where} worker", nsqd, team)[0]
    for each in (sock, *spare):
        each.close()
    return result
