"""Streams over rings: compared with a model, in each state, and with misbehaving peers."""

import ctypes
import gc
import random
import struct
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from nsqcy.formats import FormatError
from nsqcy.ipc import core as ipc_core
from nsqcy.ipc.core import Mesh, ring_offset
from support.local_meshes import WINDOW, Cluster, End, Worker
from support.runs import runs

OPEN, DATA, CREDIT, CLOSE, ABORT = 1, 2, 3, 4, 5
NOISE = random.Random(3).randbytes(1 << 21)


# --- compared with a model ---


class Pair:
    """Both ends of a stream; the second exists once the peer has been notified."""

    def __init__(self, cluster: Cluster, home: int, owner: int, hello: bytes, lazy: bool) -> None:
        self.cluster = cluster
        self.hello = hello
        self.where = (home, owner)
        self.first = cluster.open(home, owner, hello, End(lazy))

    def end(self, side: int) -> End | None:
        return self.cluster.accepted.get(self.hello) if side else self.first


class Machine(RuleBasedStateMachine):
    """Two to four meshes; every byte arrives in order, and at most a window is in transit."""

    @initialize(workers=st.integers(2, 4))
    def start(self, workers):
        self.cluster = Cluster(workers)
        self.pairs: list[Pair] = []
        self.opened = 0
        self.generations = [0] * workers

    def pick(self, data) -> End:
        """Return an end of some stream."""
        pair = data.draw(st.sampled_from(self.pairs))
        side = data.draw(st.integers(0, 1))
        return pair.end(side) or pair.end(0)

    @rule(data=st.data(), lazy=st.booleans(), size=st.sampled_from([0, 10, 32000]))
    def open(self, data, lazy, size):
        home, owner = data.draw(
            st.sampled_from(list(permutations(range(len(self.cluster.workers)), 2)))
        )
        self.opened += 1
        hello = b"%d" % self.opened + b"." * size
        self.pairs.append(Pair(self.cluster, home, owner, hello, lazy))

    @precondition(lambda self: self.pairs)
    @rule(data=st.data(), size=st.sampled_from([1, 240, 33000, 200_000, 600_000]))
    def write(self, data, size):
        end = self.pick(data)
        room = end.stream.room
        start = len(end.sent) % 1000
        assert end.write(NOISE[start : start + size]) == min(room, size)

    @precondition(lambda self: self.pairs)
    @rule(data=st.data(), size=st.sampled_from([1, 20_000, 100_000, 1 << 20]))
    def consume(self, data, size):
        end = self.pick(data)
        end.consume(size)

    @precondition(lambda self: self.pairs)
    @rule(data=st.data(), abort=st.booleans())
    def close(self, data, abort):
        end = self.pick(data)
        if abort:
            end.abort()
        else:
            end.close()

    @rule(data=st.data(), budget=st.sampled_from([1, 1000, 50_000, 1 << 30]))
    def turn(self, data, budget):
        data.draw(st.sampled_from(self.cluster.workers)).turn(budget)

    @rule(data=st.data())
    def restart(self, data):
        """A worker dies with all of its state, and is restarted."""
        dead = data.draw(st.integers(0, len(self.generations) - 1))
        workers = self.cluster.workers
        for worker in workers:
            if worker.index != dead:
                worker.stir()
                worker.peer_down(dead)
        self.generations[dead] = self.cluster.shared.reset(dead)
        for pair in self.pairs:
            if dead in pair.where:
                survivor = pair.end(0 if dead == pair.where[1] else 1)
                assert survivor is None or survivor.closes or survivor.asked_to_close
        self.pairs = [pair for pair in self.pairs if dead not in pair.where]
        workers[dead] = type(workers[dead])(self.cluster.shared, dead, self.cluster)
        for worker in workers:
            if worker.index != dead:
                assert worker.peer_up(dead, self.generations[dead])
                assert workers[dead].peer_up(worker.index, self.generations[worker.index])

    @rule(data=st.data())
    def hand_over(self, data):
        """Another process takes over a worker, with all of its streams."""
        index = data.draw(st.integers(0, len(self.generations) - 1))
        self.cluster.hand_over(index, self.generations)

    @rule(budget=st.sampled_from([5000, 1 << 30]))
    def settle(self, budget):
        self.cluster.settle(budget)
        for pair in self.pairs:
            self.check_settled(pair)

    def check_settled(self, pair: Pair):
        first, second = pair.end(0), pair.end(1)
        if second is None:
            # The stream was aborted before the peer knew about it.
            assert first.asked_to_close
            return
        for end, other in ((first, second), (second, first)):
            if not end.stream.closed and not other.stream.closed:
                assert other.got == end.sent
                held = len(end.sent) - other.consumed
                assert WINDOW - held - 32768 <= end.stream.room <= WINDOW - held
            if end.closes:
                assert other.asked_to_close
            if end.closes == [False]:
                assert end.got == other.sent
            assert end.stream.closed == other.stream.closed
            if end.stream.closed:
                assert end.stream.peer is None

    @invariant()
    def what_arrives_was_sent(self):
        for pair in getattr(self, "pairs", []):
            ends = pair.end(0), pair.end(1)
            if ends[1] is None:
                continue
            for end, other in (ends, ends[::-1]):
                assert end.sent.startswith(other.got)
                assert len(end.sent) - other.consumed <= WINDOW
                assert len(end.closes) <= 1
                assert end.stream.room <= WINDOW - (len(end.sent) - other.consumed)

    @invariant()
    def nobody_misbehaved(self):
        for worker in self.cluster.workers if hasattr(self, "cluster") else ():
            assert not worker.errors
            assert not worker.broken


TestMesh = pytest.mark.slow(Machine.TestCase)
TestMesh.settings = settings(max_examples=runs(60), stateful_step_count=50, deadline=None)


# --- one stream ---


def test_hello_bytes_and_orderly_close():
    cluster = Cluster(2)
    home = cluster.open(0, 1, b"session 7")
    home.write(b"PUB topic\n")
    home.close()
    cluster.settle()
    owner = cluster.accepted[b"session 7"]
    assert (owner.got, owner.closes) == (b"PUB topic\n", [False])
    assert home.closes == []
    assert home.write(b"more") == owner.write(b"more") == 0


def test_close_waits_for_what_has_no_room_yet():
    cluster = Cluster(2)
    home, owner = cluster.pair(0, 1)
    cluster.open(0, 1, b"other").write(NOISE[:WINDOW])  # fills the ring
    home.write(NOISE[:WINDOW])
    home.consume(0)
    home.close()
    cluster.settle()
    assert owner.got == NOISE[:WINDOW]
    assert owner.closes == [False]


def test_close_with_a_credit_pending_still_delivers_everything():
    cluster = Cluster(2)
    home, owner = cluster.pair(0, 1)
    home.lazy = True
    owner.write(NOISE[:100_000])
    cluster.settle()
    home.write(NOISE[:WINDOW])
    home.consume(100_000)  # a credit is waiting in the queue of control records
    home.close()
    cluster.settle()
    assert owner.got == NOISE[:WINDOW]
    assert owner.closes == [False]


def test_bytes_stay_in_order_when_room_comes_between_two_writes():
    cluster = Cluster(2)
    home, owner = cluster.pair(0, 1)
    cluster.open(0, 1, b"other").write(NOISE[:WINDOW])
    home.write(NOISE[:50_000])
    for worker in cluster.workers:
        worker.turn()
    home.write(NOISE[50_000:60_000])  # there is room now, but other streams come first
    cluster.settle()
    assert owner.got == NOISE[:60_000]


def test_abort_drops_pending_items():
    cluster = Cluster(2)
    home, owner = cluster.pair(0, 1)
    home.write(NOISE[:WINDOW])
    home.abort()
    cluster.settle()
    assert owner.closes == [True]
    assert len(owner.got) < WINDOW


def test_a_refused_stream_is_aborted():
    cluster = Cluster(2)
    end = cluster.open(0, 1, b"no thanks")
    end.write(b"PUB topic\n")
    cluster.settle()
    assert end.closes == [True]


def test_numbers_are_used_again():
    cluster = Cluster(2)
    for round in range(50):
        home, owner = cluster.pair(round % 2, 1 - round % 2, b"%d" % round)
        home.write(b"%d" % round)
        cluster.settle()
        assert owner.got == b"%d" % round
        (home if round % 3 else owner).close()
        cluster.settle()
    number = 0
    word = cluster.map[ring_offset(2, 0, 1) + 4096 :][: 1 << 16]
    at = 0
    while at < len(word):
        length, kind, stream = struct.unpack_from("<HBxI", word, at)
        if not kind:
            break
        number = max(number, stream)
        at += 8 + (length + 7) // 8 * 8
    assert number == 1


def test_on_writable_comes_only_after_a_write_was_cut_short():
    cluster = Cluster(2)
    home, owner = cluster.pair(0, 1)
    home.write(NOISE[:WINDOW])
    cluster.settle()
    assert (home.writables, home.stream.room) == (0, WINDOW)
    owner.lazy = True
    assert home.write(NOISE[: WINDOW + 1]) == WINDOW
    cluster.settle()
    assert (home.writables, home.stream.room) == (0, 0)
    owner.consume(1)  # returns credit, because more than half of the window is in use
    cluster.settle()
    assert (home.writables, home.stream.room) == (1, 1)


def test_consuming_more_than_was_there_gives_no_extra_credit():
    cluster = Cluster(2)
    home, owner = cluster.pair(0, 1)
    owner.lazy = True
    home.write(NOISE[:100_000])
    cluster.settle()
    owner.worker.stir()
    owner.stream.consumed(1 << 40)
    cluster.settle()
    assert home.stream.room == WINDOW
    assert not cluster.workers[0].broken


def test_an_end_that_raises_loses_its_stream_and_nothing_else():
    class Bad(End):
        def data(self, data):
            raise KeyError("bad")

    cluster = Cluster(2)
    home, owner = cluster.pair(0, 1)
    cluster.workers[1].make_end = Bad
    bad, _ = cluster.pair(0, 1, b"bad")
    bad.write(b"x")
    home.write(b"y")
    cluster.settle()
    assert [type(error) for error in cluster.workers[1].errors] == [KeyError]
    assert bad.closes == [True]
    assert owner.got == b"y"
    assert home.closes == []


@pytest.mark.parametrize("what", ["close", "abort", "peer_down"])
def test_an_end_may_end_its_stream_while_it_is_called(what):
    class Fickle(End):
        def data(self, data):
            if what == "peer_down":
                cluster.workers[1].peer_down(0)
            else:
                getattr(self, what)()
            self.stream.consumed(len(data))

    cluster = Cluster(2)
    cluster.workers[1].make_end = Fickle
    home, owner = cluster.pair(0, 1)
    for _ in range(3):
        home.write(b"x" * 1000)
    cluster.settle()
    assert owner.stream.closed
    assert home.closes == {"close": [False], "abort": [True], "peer_down": []}[what]
    assert not cluster.workers[1].errors


def test_streams_continue_in_the_next_process():
    cluster = Cluster(2)
    first, second = cluster.pair(0, 1)
    first.write(b"before ")
    cluster.hand_over(0, [0, 0])
    cluster.hand_over(1, [0, 0])
    first.write(b"and after")
    cluster.settle()
    assert second.got == b"before and after"
    second.close()
    cluster.settle()
    assert first.closes == [False]


def test_streams_without_an_end_are_closed():
    cluster = Cluster(2)
    first, second = cluster.pair(0, 1)
    packed = cluster.workers[0].pack()
    following = Worker(cluster.shared, 0, cluster)
    cluster.workers[0] = following
    following.unpack(packed)
    number = first.stream.number
    assert following.claim(1, number + 2, End()) is None
    assert following.claim(1, number ^ 1, End()) is None
    following.close_unclaimed()
    cluster.settle()
    assert second.closes == [False]
    assert following.claim(1, number, End()) is None


def test_streams_to_a_peer_that_has_restarted_are_left_out():
    cluster = Cluster(3)
    first, _ = cluster.pair(0, 1)
    other, _ = cluster.pair(0, 2, b"other")
    packed = cluster.workers[0].pack()
    for worker in (cluster.workers[0], cluster.workers[2]):
        worker.stir()
        worker.peer_down(1)
    cluster.shared.reset(1)
    following = Worker(cluster.shared, 0, cluster)
    following.unpack(packed)
    assert following.claim(1, first.stream.number or 1, End()) is None
    assert following.claim(2, other.stream.number, End()) is not None


def test_a_peer_that_is_announced_again_keeps_its_streams_once():
    cluster = Cluster(2)
    first, _ = cluster.pair(0, 1)
    number = first.stream.number
    cluster.hand_over(0, [0, 0])
    assert cluster.workers[0].peer_up(1, 0)
    assert first.closes == [True]
    assert number == 1


def test_the_pack_of_another_format_is_refused():
    cluster = Cluster(2)
    packed = cluster.workers[0].pack()
    with pytest.raises(FormatError, match="mesh format"):
        Worker(cluster.shared, 0, cluster).unpack(packed | {"format": 2})


def test_a_mesh_is_not_drained_from_within():
    class Greedy(End):
        def data(self, data):
            cluster.workers[1].drain(1000)

    cluster = Cluster(2)
    cluster.workers[1].make_end = Greedy
    home, _ = cluster.pair(0, 1)
    home.write(b"x")
    cluster.settle()
    assert [type(error) for error in cluster.workers[1].errors] == [RuntimeError]


def test_what_cannot_be_opened():
    cluster = Cluster(2)
    mesh = cluster.workers[0]
    with pytest.raises(ValueError, match="hello"):
        mesh.open(1, bytes(32769), End())
    with pytest.raises(IndexError):
        mesh.open(0, b"", End())
    mesh.peer_down(1)
    with pytest.raises(ConnectionError, match="worker 1 is down"):
        mesh.open(1, b"", End())


# --- many streams ---


def test_an_unread_stream_stops_only_itself():
    cluster = Cluster(2)
    stuck, deaf = cluster.pair(0, 1, b"stuck")
    deaf.lazy = True
    pairs = [cluster.pair(0, 1, b"%d" % number) for number in range(100)]
    for round in range(20):
        stuck.write(NOISE[:WINDOW])
        for home, _ in pairs:
            assert home.write(NOISE[round : round + 20_000]) == 20_000
        cluster.settle()
    assert len(deaf.got) == WINDOW
    for home, owner in pairs:
        assert owner.got == home.sent
        assert len(owner.got) == 400_000


def test_both_directions_filled_at_once():
    cluster = Cluster(2)
    pairs = [cluster.pair(number % 2, 1 - number % 2, b"%d" % number) for number in range(20)]
    for _ in range(5):
        for ends in pairs:
            for end in ends:
                assert end.write(NOISE[:WINDOW]) == WINDOW
        cluster.settle(budget=100_000)
    for home, owner in pairs:
        assert home.got == owner.sent == owner.got == home.sent
        assert len(home.got) == 5 * WINDOW


def test_streams_that_wait_for_one_ring_take_turns():
    cluster = Cluster(2)
    pairs = [cluster.pair(0, 1, b"%d" % number) for number in range(8)]
    for home, _ in pairs:
        home.write(NOISE[:WINDOW])
    for _ in range(4):
        cluster.workers[0].turn()
        cluster.workers[1].turn()
    # The first stream found an empty ring; the others share the room that has appeared since.
    shares = [len(owner.got) for _, owner in pairs[1:]]
    assert max(shares) - min(shares) <= 32768
    assert min(shares) > 0
    cluster.settle()
    assert all(owner.got == home.sent for home, owner in pairs)


def test_every_pair_of_four_workers_both_ways():
    cluster = Cluster(4)
    pairs = [cluster.pair(a, b, b"%d-%d" % (a, b)) for a, b in permutations(range(4), 2)]
    for round in range(10):
        for number, ends in enumerate(pairs):
            for side, end in enumerate(ends):
                start = number * 100 + side * 50 + round
                end.write(NOISE[start : start + 150_000])
        cluster.settle(budget=200_000)
    for home, owner in pairs:
        assert home.got == owner.sent
        assert owner.got == home.sent
        assert len(home.got) == len(owner.got) == 1_500_000


def test_drain_is_bounded_and_goes_round():
    cluster = Cluster(3)
    a, at_a = cluster.pair(0, 2, b"a")
    b, at_b = cluster.pair(1, 2, b"b")
    for end, worker in ((a, 0), (b, 1)):
        for _ in range(100):
            end.write(NOISE[:1000])
        cluster.workers[worker].turn()
    mesh = cluster.workers[2]
    assert mesh.drain(10_000) is True
    assert mesh.drain(10_000) is True
    assert 9_000 <= len(at_a.got) <= 11_000
    assert 9_000 <= len(at_b.got) <= 11_000
    assert mesh.prepare_sleep() is False
    assert mesh.drain(1 << 30) is False


# --- peers that start and exit ---


def test_peer_down_closes_all_streams_with_it():
    cluster = Cluster(3)
    to_dead, _ = cluster.pair(0, 1, b"1")
    _, at_home = cluster.pair(1, 0, b"2")
    other, _ = cluster.pair(0, 2, b"3")
    cluster.workers[0].peer_down(1)
    assert to_dead.closes == at_home.closes == [True]
    assert other.closes == []
    assert not cluster.workers[0].is_up(1)
    assert to_dead.write(b"x") == 0
    to_dead.stream.consumed(5)
    to_dead.abort()


def test_peer_up_of_a_generation_that_is_over():
    cluster = Cluster(2)
    cluster.workers[0].peer_down(1)
    assert cluster.shared.reset(1) == 1
    assert cluster.workers[0].peer_up(1, 0) is False
    assert cluster.workers[0].peer_up(1, 1) is True


def test_what_came_before_peer_up_is_read_after_it():
    cluster = Cluster(2)
    cluster.workers[1].peer_down(0)
    cluster.open(0, 1, b"early").write(b"data")
    cluster.settle()
    assert b"early" not in cluster.accepted
    cluster.workers[1].stir()
    assert cluster.workers[1].peer_up(0, 0)
    cluster.settle()
    assert cluster.accepted[b"early"].got == b"data"


# --- misbehaving peers ---


class Mad:
    """Worker 0, replaced with code that writes arbitrary data into the ring to worker 1."""

    def __init__(self) -> None:
        self.cluster = Cluster(2)
        self.manager, self.owner = self.cluster.pair(0, 1)
        self.mesh = self.cluster.workers[1]
        self.at = ring_offset(2, 0, 1)
        self.head = ctypes.c_uint64.from_buffer(self.cluster.map, self.at)

    def write(self, kind: int, number: int, payload: bytes = b"", length: int | None = None):
        size = len(payload) if length is None else length
        record = struct.pack("<HBxI", size, kind, number) + payload
        record += bytes(-len(record) % 8)
        at = self.at + 4096 + self.head.value % WINDOW
        left = WINDOW - self.head.value % WINDOW
        if len(record) > left:
            self.cluster.map[at : at + 8] = bytes(8)
            self.head.value += left
            at = self.at + 4096
        self.cluster.map[at : at + len(record)] = record
        self.head.value += len(record)
        dirty = ctypes.c_uint64.from_buffer(self.cluster.map, 128 + 128 + 72)
        dirty.value |= 1

    def turn(self) -> None:
        self.mesh.turn()


@pytest.mark.parametrize(
    ("kind", "number", "payload", "reason"),
    [
        (77, 1, b"", "record kind"),
        (CREDIT, 9, b"\1\0\0\0", "credit for an unknown stream"),
        (CREDIT, 1, b"\1\0", "credit for an unknown stream"),
        (OPEN, 1, b"again", "stream opened twice"),
        (OPEN, 2, b"ours", "stream number"),
        (OPEN, 0xFFFFFFFF, b"far", "stream number"),
    ],
)
def test_a_record_against_the_rules_breaks_the_peer(kind, number, payload, reason):
    mad = Mad()
    mad.write(kind, number, payload)
    mad.turn()
    assert mad.mesh.broken == [(0, reason)]
    assert mad.owner.closes == [True]
    assert not mad.mesh.is_up(0)
    mad.turn()


@pytest.mark.parametrize("kind", [DATA, CLOSE, ABORT])
@pytest.mark.parametrize("number", [0, 3, 1000, 0xFFFFFFFF])
def test_records_of_no_stream_are_dropped(kind, number):
    mad = Mad()
    mad.write(kind, number, b"" if kind != DATA else b"lost")
    mad.write(DATA, 1, b"kept")
    mad.turn()
    assert mad.owner.got == b"kept"
    assert not mad.mesh.broken


def test_data_over_its_credit_aborts_that_stream():
    mad = Mad()
    mad.owner.lazy = True
    for _ in range(WINDOW // 4096):
        mad.write(DATA, 1, bytes(4096))
        mad.turn()
    assert mad.owner.closes == []
    mad.write(DATA, 1, b"x")
    mad.turn()
    assert mad.owner.closes == [True]
    assert not mad.mesh.broken


def test_credit_for_more_than_the_window_aborts_that_stream():
    mad = Mad()
    mad.write(CREDIT, 1, struct.pack("<I", 1))
    mad.turn()
    assert mad.owner.closes == [True]
    assert not mad.mesh.broken


@pytest.mark.parametrize("head", [4, 1 << 40, 2**64 - 8])
def test_an_impossible_head_breaks_the_peer(head):
    mad = Mad()
    mad.write(DATA, 1, b"x")
    mad.head.value = head
    mad.turn()
    assert mad.mesh.broken == [(0, "ring record")]


def test_an_impossible_tail_breaks_the_peer():
    mad = Mad()
    tail = ctypes.c_uint64.from_buffer(mad.cluster.map, ring_offset(2, 1, 0) + 64)
    tail.value = 1 << 30
    mad.owner.write(NOISE[:WINDOW])
    mad.turn()
    assert mad.mesh.broken == [(0, "ring tail")]
    assert mad.owner.closes == [True]


def test_a_ring_that_is_broken_from_the_start():
    cluster = Cluster(2)
    cluster.workers[1].peer_down(0)
    ctypes.c_uint64.from_buffer(cluster.map, ring_offset(2, 0, 1)).value = 12345
    assert cluster.workers[1].peer_up(0, 0) is False
    assert cluster.workers[1].broken == [(0, "ring positions")]


RECORDS = st.tuples(
    st.integers(0, 6),
    st.integers(0, 12) | st.integers(0, 2**32 - 1),
    st.binary(max_size=40) | st.integers(0, WINDOW).map(lambda n: struct.pack("<I", n)),
    st.none() | st.integers(0, 65535),
)


@pytest.mark.slow
@settings(max_examples=runs(40), deadline=None)
@given(st.lists(RECORDS, max_size=30), st.booleans())
def test_any_records_at_all_do_no_harm(records, answer):
    mad = Mad()
    mad.owner.write(b"from the owner")
    for number in range(2):
        end = End()
        end.stream = mad.mesh.open(0, b"%d" % number, end)
    for record in records:
        mad.write(*record)
        if answer:
            mad.turn()
    mad.turn()
    assert len(mad.owner.got) - mad.owner.consumed <= WINDOW


@pytest.mark.slow
@settings(max_examples=runs(60), deadline=None)
@given(st.integers(0, 2**40))
def test_noise_in_the_ring_does_no_harm(seed):
    mad = Mad()
    chance = random.Random(seed)
    start = mad.at + 4096
    noise = bytearray(chance.randbytes(4096) * (WINDOW // 4096))
    for at in range(0, len(noise), 64):
        noise[at : at + 8] = struct.pack("<HBxI", chance.randrange(100), chance.randrange(6), 1)
    mad.cluster.map[start : start + WINDOW] = bytes(noise)
    mad.head.value += chance.randrange(0, WINDOW // 2, 8)
    ctypes.c_uint64.from_buffer(mad.cluster.map, 128 + 128 + 72).value |= 1
    mad.turn()
    mad.turn()


# --- everything is released ---


def leave_streams_in_every_state() -> dict[str, int]:
    """Return the counts of live objects in a cluster with open, closing and waiting streams; then
    drop the cluster."""
    cluster = Cluster(2)
    pairs = [cluster.pair(0, 1, b"%d" % number) for number in range(10)]
    for home, _ in pairs:
        home.write(NOISE[:WINDOW])
    alive = ipc_core.live()
    cluster.settle()
    for home, _ in pairs[:5]:
        home.close()
    for home, _ in pairs[5:]:
        home.write(NOISE[:WINDOW])
    return alive


@pytest.mark.slow
def test_streams_and_buffers_are_given_back():
    gc.collect()
    before = ipc_core.live()
    alive = leave_streams_in_every_state()
    if alive != before:  # only debug builds keep these counts
        assert alive["streams"] == before["streams"] + 20
        assert alive["buffers"] == before["buffers"] + 10
    gc.collect()
    assert ipc_core.live() == before


def test_mesh_arguments():
    cluster = Cluster(2)
    with pytest.raises(IndexError):
        Mesh(cluster.shared, 2, [-1, -1])
    with pytest.raises(ValueError, match="one eventfd for each"):
        Mesh(cluster.shared, 0, [-1])
