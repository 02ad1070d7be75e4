"""Connections through TLS or snappy, near their topic and far from it."""

import datetime
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from loadtest.bench import load, procfs
from loadtest.bench.daemon import Daemon, NotOffered
from loadtest.bench.speed import BATCH, READY, Result, Settings, measure, publish
from nsqcy.nsqd.master.placement import Placement

MAX_TRIES = 64  # connections until one has its home where it is wanted


@contextmanager
def certificate() -> Iterator[dict[str, Path]]:
    """The options of a daemon that has one."""
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


def tls(settings: Settings) -> Iterator[Result]:
    with certificate() as options:
        yield from through(settings, "tls", **options)


def snappy(settings: Settings) -> Iterator[Result]:
    yield from through(settings, "snappy")


def through(settings: Settings, way: str, **options: Any) -> Iterator[Result]:
    """Publish and consume in turns."""
    messages = settings.count(400_000)
    pipelined = partial(load.pipelined, open=partial(load.producer, way=way))
    finishing = partial(load.finishing, open=partial(load.consumer, way=way))
    with settings.nsqd(**options) as nsqd, settings.topic(nsqd) as topic:
        load.producer(nsqd.tcp, way).close()  # or it is not offered
        command = load.mpub(topic, [settings.body] * BATCH)
        for _ in settings.rounds():
            with load.Team(1) as team:
                team.add(pipelined, nsqd.tcp, command, BATCH, messages // BATCH, 8)
                yield measure(f"MPUB x200, 1 conn, {way}", nsqd, team)[0]
            with load.Team(1) as team:
                team.add(finishing, nsqd.tcp, topic, READY, messages, slice(0, 1), 0)
                yield measure(f"SUB+FIN RDY 2500, 1 conn, {way}", nsqd, team)[0]


def foreign(settings: Settings) -> Iterator[Result]:
    """A consumer behind TLS whose topic is another worker's, beside one that is at home with it."""
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
                    result.note = f"{result.daemon_us / at_home:.2f} x home"
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
        where = "home" if home else "foreign"
        result = measure(f"TLS consumer of a {where} topic", nsqd, team)[0]
    for each in (sock, *spare):
        each.close()
    return result
