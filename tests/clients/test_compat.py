"""Programs of pynsq and gnsq do the same with another import line."""

import subprocess
from collections.abc import Callable, Iterator

import pytest
from daemon import Nsqd, environment
from libraries import SHIMS, Consumer, Producer, command_of

every_shim = pytest.mark.parametrize("library", SHIMS)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    daemon = Nsqd(tmp_path_factory.mktemp("compat"), workers=1).start()
    yield daemon
    daemon.destroy()


def said(library: str, script: str, daemon: Nsqd, topic: str, *more: str) -> str:
    words = [f"127.0.0.1:{daemon.tcp_port}", f"{topic}-{library}", *more]
    if script == "gnsq_parts":
        words.append(f"127.0.0.1:{daemon.http_port}")
    done = subprocess.run(
        [*command_of(library, script), *words],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.replace(f"-{library}", "")


@pytest.mark.parametrize(
    "script",
    [
        "pynsq_reading",
        "pynsq_writing",
        "pynsq_parts",
        "gnsq_reading",
        "gnsq_writing",
        "gnsq_parts",
    ],
)
def test_both_say_the_same(script: str, daemon: Nsqd, topic: str) -> None:
    library = script.partition("_")[0]
    theirs = said(library, script, daemon, topic)
    assert said(f"{library}-shim", script, daemon, topic) == theirs


@pytest.mark.parametrize("how", ["tornado", "term"])
def test_what_pynsq_does_not_do(how: str, daemon: Nsqd, topic: str) -> None:
    """A handler that returns nothing finishes; what is published before there is a connection is
    published once there is."""
    assert said("pynsq-shim", "pynsq_tornado", daemon, topic, how) == "at once\nb'OK'\n"
    daemon.web.await_counts(f"{topic}-pynsq-shim", "c", depth=0, in_flight_count=0)


@every_shim
def test_publishing(
    library: str, daemon: Nsqd, topic: str, publish: Callable[..., Producer]
) -> None:
    conn = daemon.connect().sub(topic, "c", rdy=100)
    producer = publish(library, daemon, topic, batch=5)
    producer.publish([b"%d\0\n" % number for number in range(50)])
    assert producer.finish() == ["OK"] * 10
    assert [message.body for message in conn.take(50)] == [b"%d\0\n" % n for n in range(50)]


@every_shim
def test_consuming(
    library: str, daemon: Nsqd, topic: str, consume: Callable[..., Consumer]
) -> None:
    """Messages are requeued once, then touched, then finished."""
    bodies = [b"%d" % number for number in range(20)]
    daemon.web.mpub(topic, bodies)
    consumer = consume(library, daemon, topic, "c", rdy=20, requeue=0, touches=1)
    messages = consumer.messages(40)
    assert sorted(each.body for each in messages) == sorted(bodies * 2)
    assert sorted(each.attempts for each in messages) == [1] * 20 + [2] * 20
    daemon.web.await_counts(topic, "c", depth=0, in_flight_count=0, deferred_count=0)
    consumer.close()
