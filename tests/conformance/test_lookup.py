"""nsqd as a client of scripted lookupds: its registrations and its queries. It behaves as NSQ's
nsqd does, with nsqcy's improvements.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import Starter
from nsqcy.testing.http_requests import eventually
from support.fake_nsqlookupd import HANG_UP, OK, RAW, SILENCE, FakeLookupd
from support.nsqd_process import Nsqd, free_port
from support.nsqlookupd_process import Lookupd

ADDRESSES = "/config/nsqlookupd_tcp_addresses"
SOON = 0.1  # seconds that harnesses wait


@pytest.fixture
def lookupd() -> Iterator[Callable[..., FakeLookupd]]:
    """Factory of lookupds."""
    made: list[FakeLookupd] = []

    def make(port: int = 0, host: str = "127.0.0.1") -> FakeLookupd:
        made.append(FakeLookupd(port, host))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(scope="module")
def one_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    daemon = Nsqd(tmp_path_factory.mktemp("lookup"), workers=1).start()
    yield daemon
    daemon.destroy()


@pytest.fixture
def one_worker(one_daemon: Nsqd) -> Iterator[Nsqd]:
    """Daemon without lookupds. The master behaves the same with any number of workers."""
    for name in one_daemon.web.topics():
        one_daemon.web.do("delete", name)
    yield one_daemon
    one_daemon.hang_up()
    one_daemon.web.put(ADDRESSES, b"[]")


Make = Callable[..., FakeLookupd]


def await_identities(*lookupds: FakeLookupd) -> None:
    for each in lookupds:
        eventually(lambda each=each: each.links and each.link.identity)


def use(daemon: Nsqd, *lookupds: FakeLookupd) -> None:
    """Set the lookupds of the daemon, and wait until it has identified itself to them."""
    body = json.dumps([each.address for each in lookupds]).encode()
    assert daemon.web.put(ADDRESSES, body).status == 200
    await_identities(*lookupds)


def connected(nsqd: Starter, lookupd: FakeLookupd, **options: object) -> Nsqd:
    daemon = nsqd(lookupd_tcp_address=lookupd.address, **options)
    await_identities(lookupd)
    return daemon


def await_log(daemon: Nsqd, *texts: str) -> None:
    for text in texts:
        eventually(lambda text=text: text in daemon.log_text())


def await_told(lookupd: FakeLookupd, *commands: str) -> None:
    """Wait until the lookupd has received all of these commands, in any order."""
    eventually(lambda: set(commands) <= set(lookupd.told()) or None)


@pytest.mark.case("LKP-01")
def test_it_introduces_itself(nsqd: Starter, lookupd: Make) -> None:
    one = lookupd()
    daemon = connected(
        nsqd, one, broadcast_address="me", topology_zone="z", topology_region="r", max_msg_size=2000
    )
    assert one.link.magic == b"  V1"
    assert list(one.link.identity) == [
        "broadcast_address",
        "hostname",
        "http_port",
        "tcp_port",
        "topology_region",
        "topology_zone",
        "version",
    ]
    info = daemon.web.get("/info").json()
    assert {key: info[key] for key in one.link.identity} == one.link.identity
    await_log(
        daemon,
        f"LOOKUP({one.address}): adding peer",
        f"LOOKUP connecting to {one.address}",
        f"LOOKUPD({one.address}): peer info {{TCPPort:{one.port} HTTPPort:{one.http_port} "
        "Version:1.3.0 BroadcastAddress:127.0.0.1}",
    )


@pytest.mark.case("LKP-02", "LKP-14")
def test_what_is_there_at_the_start(nsqd: Starter, lookupd: Make) -> None:
    one = lookupd()
    daemon = connected(nsqd, one)
    daemon.web.create("m1", "a", "b")
    daemon.web.create("m2")
    await_told(one, "REGISTER m1", "REGISTER m1 a", "REGISTER m1 b", "REGISTER m2")
    link = one.link
    eventually(lambda: sorted(one.asked) == ["/channels?topic=m1", "/channels?topic=m2"])
    daemon.stop()
    assert link.ended.wait(10)
    assert not [command for command in link.commands if command.startswith("UN")]
    daemon.start()
    await_told(one, "REGISTER m1 a", "REGISTER m1 b", "REGISTER m2")
    assert len(one.links) == 2 and sorted(one.told()) == sorted(
        {"REGISTER m1 a", "REGISTER m1 b", "REGISTER m2"}
    )
    assert len(one.asked) == 2


@pytest.mark.case("LKP-03", "H11")
def test_a_new_topic_has_the_channels_that_lookupds_know(nsqd: Starter, lookupd: Make) -> None:
    one, two = lookupd(), lookupd()
    daemon = nsqd(lookupd_tcp_address=[one.address, two.address])
    await_identities(one, two)
    log = daemon.log_text()
    assert log.index(f"LOOKUP connecting to {two.address}") < log.index(" TCP: listening on")
    one.channels["t1"] = ["c1", "c2#ephemeral", "c3"]
    two.channels["t1"] = ["c3", "c4", "not a name"]
    daemon.web.post("/topic/create", topic="t1")
    for each in (one, two):
        await_told(each, "REGISTER t1", "REGISTER t1 c1", "REGISTER t1 c3", "REGISTER t1 c4")
    assert set(one.told()) == set(two.told()) and len(one.told()) == 4
    assert one.asked == two.asked == ["/channels?topic=t1"]
    assert one.accepts == ["application/vnd.nsq; version=1.0"]
    url = f"http://127.0.0.1:{one.http_port}/channels?topic=t1"
    await_log(
        daemon,
        f"CI: querying nsqlookupd {url}",
        f"LOOKUPD({one.address}): topic REGISTER t1\n",
        f"LOOKUPD({one.address}): channel REGISTER t1 c1\n",
    )


@pytest.mark.case("H11")
def test_changes_are_reported_at_once(one_worker: Nsqd, lookupd: Make) -> None:
    """Changes arrive within the time that harnesses allow, even on a machine that is sometimes
    busy."""
    one = lookupd()
    use(one_worker, one)
    times = []
    for number in range(20):
        command = f"REGISTER h11 c{number}"
        start = time.monotonic()
        one_worker.web.create("h11", f"c{number}")
        eventually(lambda command=command: command in one.told())
        times.append(time.monotonic() - start)
    assert sorted(times)[4] < SOON, times


@pytest.mark.case("LKP-04")
def test_ephemeral_ones_too(one_worker: Nsqd, lookupd: Make) -> None:
    one = lookupd()
    use(one_worker, one)
    conn = one_worker.connect().sub("t", "ch#ephemeral")
    await_told(one, "REGISTER t", "REGISTER t ch#ephemeral")
    conn.close()
    await_told(one, "UNREGISTER t ch#ephemeral")
    other = one_worker.connect().sub("e#ephemeral", "ch#ephemeral")
    await_told(one, "REGISTER e#ephemeral ch#ephemeral")
    other.close()
    await_told(one, "UNREGISTER e#ephemeral ch#ephemeral", "UNREGISTER e#ephemeral")


@pytest.mark.case("LKP-05", "LKP-06")
def test_what_is_deleted_and_what_is_paused(one_worker: Nsqd, lookupd: Make) -> None:
    one = lookupd()
    use(one_worker, one)
    one_worker.web.create("t", "c1", "c2", "c3")
    await_told(one, "REGISTER t c3")
    before = one.told()
    for action in ("pause", "unpause", "empty"):
        one_worker.web.do(action, "t")
        one_worker.web.do(action, "t", "c1")
    one_worker.web.pub("t", b"x")
    one_worker.web.do("delete", "t", "c1")
    await_told(one, "UNREGISTER t c1")
    assert one.told() == [*before, "UNREGISTER t c1"]
    one_worker.web.do("delete", "t")
    await_told(one, "UNREGISTER t", "UNREGISTER t c2", "UNREGISTER t c3")
    assert len(one.told()) == len(before) + 4


@pytest.mark.case("LKP-08")
@pytest.mark.ours
def test_it_comes_back_by_itself_and_tells_everything(one_worker: Nsqd, lookupd: Make) -> None:
    one = lookupd()
    use(one_worker, one)
    one_worker.web.create("t", "c")
    await_told(one, "REGISTER t c")
    one.link.close()
    eventually(lambda: len(one.links) == 2 and one.told() == ["REGISTER t c"])
    one_worker.web.create("u")
    await_told(one, "REGISTER u")
    await_log(one_worker, f"LOOKUPD({one.address}): waiting for changes - EOF")


@pytest.mark.case("LKP-09", "LKP-16", "LKP-10")
@pytest.mark.parametrize(
    "bad",
    [
        b"E_INVALID",
        b"E_BAD_BODY IDENTIFY missing fields",
        b"[]",
        SILENCE,
        HANG_UP,
        RAW + b"\x7f\xff\xff\xff",
        RAW + b"\xff\xff\xff\xff",
        RAW + b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
)
def test_a_lookupd_that_makes_no_sense(lookupd: Make, one_worker: Nsqd, bad: bytes | None) -> None:
    one, good = lookupd(), lookupd()
    one.answers = lambda command: bad if len(one.links) == 1 else OK
    addresses = [one.address, good.address]
    one_worker.web.put(ADDRESSES, json.dumps(addresses).encode())
    await_identities(good)
    one_worker.web.pub("nonsense", b"x")
    await_told(good, "REGISTER nonsense")
    eventually(lambda: one.links)  # nsqd may query this lookupd later
    assert one.links[0].ended.wait(10)
    eventually(lambda: len(one.links) == 2 and "REGISTER nonsense" in one.told())
    await_log(one_worker, f"ERROR: LOOKUPD({one.address}): IDENTIFY - ")


@pytest.mark.case("LKP-10")
@pytest.mark.ours
def test_a_hanging_lookupd_does_not_delay_others(nsqd: Starter, lookupd: Make) -> None:
    """Neither other lookupds nor publishers to a new topic have to wait."""
    silent, good = lookupd(), lookupd()
    silent.answers = lambda command: SILENCE
    good.channels["t"] = ["seeded"]
    daemon = nsqd(lookupd_tcp_address=[silent.address, good.address])
    await_identities(good)
    daemon.web.pub("t", b"x")
    await_told(good, "REGISTER t", "REGISTER t seeded")
    daemon.web.await_counts("t", "seeded", depth=1)


@pytest.mark.case("LKP-11")
def test_without_a_broadcast_address(one_worker: Nsqd, lookupd: Make) -> None:
    one = lookupd()
    one.info = {}
    one_worker.web.put(ADDRESSES, json.dumps([one.address]).encode())
    one_worker.web.create("lkp11")
    await_told(one, "REGISTER lkp11")
    assert len(one.links) == 1 and not one.asked
    await_log(one_worker, f"ERROR: LOOKUPD({one.address}): no broadcast address")
    no_peer = "no available nsqlookupd to query for channels to pre-create for topic lkp11"
    await_log(one_worker, no_peer)


@pytest.mark.case("LKP-12", "LKP-13", "HTTP-077")
def test_addresses_change(nsqd: Starter, lookupd: Make) -> None:
    one, two, kept = lookupd(), lookupd(), lookupd()
    daemon = nsqd(lookupd_tcp_address=[one.address, one.address, kept.address])
    daemon.web.create("t", "c")
    await_told(one, "REGISTER t", "REGISTER t c")
    await_told(kept, "REGISTER t", "REGISTER t c")
    body = json.dumps([two.address, kept.address, two.address]).encode()
    assert daemon.web.put(ADDRESSES, body).status == 200
    assert one.link.ended.wait(10)
    await_told(two, "REGISTER t c")
    assert (len(one.links), len(two.links), len(kept.links)) == (1, 1, 1)
    assert not [command for command in one.told() if command.startswith("UN")]
    await_log(
        daemon, f"LOOKUP({one.address}): removing peer", f"LOOKUP({two.address}): adding peer"
    )
    assert daemon.log_text().count(f"LOOKUP({kept.address}): adding peer") == 1
    assert daemon.web.get(ADDRESSES).json() == json.loads(body)
    daemon.web.put(ADDRESSES, b"[]")
    assert two.link.ended.wait(10) and kept.link.ended.wait(10)
    daemon.web.pub("u", b"x")
    assert not two.asked
    daemon.web.put(ADDRESSES, json.dumps([one.address]).encode())
    await_told(one, "REGISTER t c", "REGISTER u")


@pytest.mark.case("LKP-15")
def test_no_ports(nsqd: Starter, lookupd: Make, short_path: Path) -> None:
    one = lookupd()
    daemon = nsqd.prepare(
        tcp_address=short_path / "tcp",
        http_address=short_path / "http",
        lookupd_tcp_address=one.address,
        announced=False,
    )
    daemon.launch()
    eventually(lambda: one.links and one.link.identity)
    assert (one.link.identity["tcp_port"], one.link.identity["http_port"]) == (0, 0)


def test_every_seeded_channel_gets_every_message(nsqd: Starter, lookupd: Make) -> None:
    """Publishes are acknowledged immediately, and their messages wait for the channels."""
    one = lookupd()
    gate = threading.Event()

    def reply(topic: str) -> bytes:
        gate.wait(20)
        return b'{"channels":["a","b"]}'

    one.http_reply = reply
    daemon = connected(nsqd, one)
    conn = daemon.connect()
    for number in range(20):
        conn.pub("t", b"%d" % number)
    consumer = daemon.connect().sub("t", "early", 100)
    consumer.nothing(0.1)
    assert daemon.web.topic("t")["paused"] is False
    gate.set()
    assert [message.body for message in consumer.take(20)] == [b"%d" % each for each in range(20)]
    daemon.web.await_counts("t", "a", depth=20)
    daemon.web.await_counts("t", "b", depth=20)
    daemon.web.await_counts("t", depth=0)


def test_an_http_side_that_hangs_or_fails(nsqd: Starter, lookupd: Make) -> None:
    one, two = lookupd(), lookupd()
    two.channels["t"] = ["seeded"]
    daemon = nsqd(
        lookupd_tcp_address=[one.address, two.address], http_client_request_timeout="300ms"
    )
    eventually(lambda: one.links and one.link.identity and two.links and two.link.identity)
    one.http_reply = lambda topic: None
    daemon.web.pub("t", b"x")
    daemon.web.await_counts("t", "seeded", depth=1)
    one.http_reply = lambda topic: b"rubbish"
    two.http_reply = lambda topic: b'{"channels":[1,{},"#"]}'
    two.http_status = 500
    conn = daemon.connect().sub("u", "c", 1)
    daemon.web.pub("u", b"y")
    assert conn.message().body == b"y"
    warning = "WARNING: failed to query nsqlookupd for channels to pre-create for topic"
    url = f"http://127.0.0.1:{one.http_port}/channels?topic="
    await_log(
        daemon,
        f"{warning} t - {url}t: timed out\n",
        f"{warning} u - failed to query any nsqlookupd: {url}u: invalid response; ",
    )


def test_an_http_side_that_hangs_keeps_no_topic_from_the_channels_of_others(
    nsqd: Starter, lookupd: Make
) -> None:
    """The topics get their channels even if there are more of them than nsqd's limit on concurrent
    queries to a lookupd."""
    silent, good = lookupd(), lookupd()
    silent.http_reply = lambda topic: None
    good.http_reply = lambda topic: b'{"channels":["seeded"]}'
    daemon = nsqd(lookupd_tcp_address=[silent.address, good.address])
    await_identities(silent, good)
    conn = daemon.connect()
    topics = [f"t{number}" for number in range(24)]
    for topic in topics:
        conn.pub(topic, b"x")
    for topic in topics:
        daemon.web.await_counts(topic, "seeded", depth=1)
    warning = "WARNING: failed to query nsqlookupd for channels to pre-create for topic"
    url = f"http://127.0.0.1:{silent.http_port}/channels?topic="
    await_log(daemon, *(f"{warning} {topic} - {url}{topic}: timed out\n" for topic in topics))


def test_a_worker_that_dies_takes_its_ephemeral_ones(nsqd: Starter, lookupd: Make) -> None:
    one = lookupd()
    daemon = connected(nsqd, one)
    daemon.web.create("t", "c")
    conn = daemon.connect().sub("t", "gone#ephemeral")
    await_told(one, "REGISTER t c", "REGISTER t gone#ephemeral")
    for pid in daemon.workers():
        os.kill(pid, signal.SIGKILL)
    await_told(one, "UNREGISTER t gone#ephemeral")
    eventually(daemon._pings)
    assert "UNREGISTER t c" not in one.told() and len(one.links) == 1
    conn.close()


def test_one_that_starts_later_hears_of_everything(nsqd: Starter, lookupd: Make) -> None:
    port = free_port()
    daemon = nsqd(lookupd_tcp_address=f"localhost:{port}")
    daemon.web.create("t", "c")
    one = lookupd(port)
    eventually(lambda: one.links and one.told() == ["REGISTER t c"])
    await_log(daemon, f"LOOKUP(localhost:{port}): adding peer")


def test_the_configuration_is_read_again(nsqd: Starter, lookupd: Make) -> None:
    one, two = lookupd(), lookupd()
    daemon = nsqd.prepare()
    path = daemon.data / "nsqd.ini"
    path.write_text(f"[nsqd]\nlookupd_tcp_address = {one.address}\n")
    daemon.options["config"] = path
    daemon.start()
    eventually(lambda: one.links)
    path.write_text(f"[nsqd]\nlookupd_tcp_address = {two.address}\n")
    daemon.process.send_signal(signal.SIGHUP)
    eventually(lambda: two.links and two.link.identity)
    assert one.link.ended.wait(10)


# -- with nsqlookupd


def test_two_nsqds_and_one_nsqlookupd(nsqd: Starter) -> None:
    """The second nsqd has the first one's channels before it gets its first message. A stopped nsqd
    is no longer listed."""
    with Lookupd() as one:
        first = nsqd(lookupd_tcp_address=one.tcp_address, broadcast_address="first")
        second = nsqd(lookupd_tcp_address=one.tcp_address, broadcast_address="second")
        eventually(lambda: len(one.nodes()) == 2)
        first.web.create("t", "a", "b")
        eventually(lambda: one.channels("t") == ["a", "b"])
        second.web.pub("t", b"x")
        second.web.await_counts("t", "a", depth=1)
        second.web.await_counts("t", "b", depth=1)
        eventually(lambda: one.producers("t") == ["first", "second"])
        second.web.do("delete", "t")
        eventually(lambda: one.producers("t") == ["first"])
        first.stop()
        eventually(lambda: one.producers("t") == [])


def test_nsqlookupd_starts_again(nsqd: Starter) -> None:
    with Lookupd() as one:
        daemon = nsqd(lookupd_tcp_address=one.tcp_address, broadcast_address="me")
        daemon.web.create("t", "c")
        eventually(lambda: one.channels("t") == ["c"])
        one.kill()
        daemon.web.create("u", "d")
        one.start()
        eventually(lambda: one.producers("t") == one.producers("u") == ["me"])
        assert (one.channels("t"), one.channels("u")) == (["c"], ["d"])


def test_a_lookup_after_the_answer_finds_what_was_created(nsqd: Starter, lookupd: Make) -> None:
    one = lookupd()
    daemon = connected(nsqd, one)
    tcp = daemon.connect()
    for number in range(10):
        tcp.pub(f"tcp{number}", b"x")
        assert f"REGISTER tcp{number}" in one.told()
        daemon.web.pub(f"http{number}", b"x")
        assert f"REGISTER http{number}" in one.told()
        daemon.web.do("create", f"made{number}")
        assert f"REGISTER made{number}" in one.told()
        daemon.web.do("create", f"made{number}", "c")
        assert f"REGISTER made{number} c" in one.told()
