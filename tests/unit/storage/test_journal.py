"""The journal's content: round trips, application, fuzz."""

import struct
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqcy.storage.journal import (
    ENTRY,
    ChannelState,
    Delta,
    Entry,
    EpochState,
    JournalError,
    Kind,
    NamedCursor,
    PartState,
    State,
    TopicState,
    TransferRun,
    apply,
    decode_delta,
    decode_snapshot,
    encode_delta,
    encode_entries,
    encode_snapshot,
    pack_entries,
    pack_part,
    replay,
    unpack_entries,
    unpack_parts,
    without,
)
from support.runs import runs

u64 = st.integers(0, 2**64 - 1)
names = st.from_regex(r"[.a-zA-Z0-9_-]{1,20}(#ephemeral)?", fullmatch=True)
entries = st.builds(
    Entry,
    u64,
    u64,
    u64,
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 65535),
    st.sampled_from(State),
    st.integers(0, 2**32 - 1),
    st.integers(0, 255),
)
entry_lists = st.lists(entries, max_size=6, unique_by=lambda entry: entry.seq)
ranges = st.lists(st.tuples(u64, u64), max_size=3).map(tuple)
keys = st.binary(min_size=1, max_size=255)
channels = st.builds(
    ChannelState,
    names,
    st.booleans(),
    u64,
    u64,
    entry_lists.map(pack_entries),
    ranges,
    u64,
    transfers=st.lists(st.builds(TransferRun, u64, u64, names), max_size=2).map(tuple),
    paused_keys=st.lists(keys, max_size=2).map(tuple),
    emptied_keys=st.lists(st.tuples(u64, keys), max_size=2).map(tuple),
)
i64 = st.integers(-(2**63), 2**63 - 1)
u32 = st.integers(0, 2**32 - 1)
cursors = st.builds(NamedCursor, names, st.binary(min_size=16, max_size=16), u64, i64)
part_lists = st.lists(
    st.builds(
        PartState, u32, u64, st.lists(st.tuples(u32, u32), max_size=3).map(tuple), st.booleans()
    ),
    max_size=2,
)
epochs = st.builds(
    EpochState,
    u64,
    u64,
    i64,
    part_lists.map(lambda parts: b"".join(map(pack_part, parts))),
)
topics = st.builds(
    TopicState,
    st.binary(min_size=16, max_size=16),
    u64,
    u64,
    st.booleans(),
    st.lists(channels, max_size=4, unique_by=lambda channel: channel.name).map(tuple),
    entry_lists.map(pack_entries),
    ranges,
    st.booleans(),
    st.binary(min_size=16, max_size=16).filter(any),
    st.integers(0, 2),
    st.lists(cursors, max_size=2, unique_by=lambda cursor: cursor.name).map(tuple),
    st.lists(epochs, max_size=2).map(tuple),
    st.integers(1, 2**64 - 1),
    missing=ranges,
    policies=st.binary(max_size=9),
)
deltas = st.one_of(
    st.builds(Delta, st.just(Kind.CHANNEL_CREATED), names, u64, st.booleans()),
    st.builds(
        Delta,
        st.sampled_from([Kind.CHANNEL_DELETED, Kind.CURSOR_MOVED, Kind.ENTRY_FINISHED]),
        names,
        u64,
    ),
    st.builds(Delta, st.just(Kind.ENTRY_ADDED), names, st.just(0), st.just(False), entries),
    st.builds(Delta, st.just(Kind.ENTRY_TRANSFERRED), names, u64),
    st.builds(
        Delta,
        st.just(Kind.ENTRY_TRANSFERRED),
        names,
        u64,
        entry=entries,
        run=st.builds(TransferRun, u64, u64, names),
        delayed=st.booleans(),
    ),
    st.builds(
        Delta,
        st.just(Kind.CURSOR_NAMED),
        st.just(""),
        st.just(0),
        st.just(False),
        st.none(),
        cursors,
        st.booleans(),
    ),
)


def test_the_layout_of_an_entry():
    assert ENTRY.size == 40
    packed = Entry(1, 2, 3, -4, 5, State.DEFERRED, 6).pack()
    assert packed == struct.pack("<QQQqHBBI", 1, 2, 3, -4, 5, 1, 0, 6)


def test_golden_bytes():
    state = TopicState(
        b"0123456789abcdef", 9, 7, True, (ChannelState("c", False, 5, 0, Entry(3, 1, 64).pack()),)
    )
    assert encode_snapshot(state) == (
        bytes.fromhex("010001000100000028000000")
        + b"0123456789abcdef"
        + struct.pack("<QQHHI", 9, 7, 1, 0, 0)
        + struct.pack("<HHI", 3, 0, 24 + 1 + 40)
        + struct.pack("<QQHHI", 5, 0, 0, 1, 0)
        + b"c"
        + Entry(3, 1, 64).pack()
    )
    assert encode_delta(Delta(Kind.ENTRY_FINISHED, "c", 3)) == (
        struct.pack("<HHHHQ", 6, 1, 0, 1, 3) + b"c"
    )


@pytest.mark.slow
@given(topics)
def test_snapshots_round_trip(state):
    assert decode_snapshot(encode_snapshot(state)) == state


@pytest.mark.slow
@given(
    topics,
    st.lists(
        st.tuples(st.integers(0, 3), st.lists(st.tuples(entries, u64), max_size=4)), max_size=6
    ),
)
def test_entries_may_follow_in_pieces(state, pieces):
    """Entries in pieces have ids and keep their order; entries of a channel itself have no ids."""
    image = encode_snapshot(state)
    expected = {one.name: (list(unpack_entries(one.entries)), []) for one in state.channels}
    followed = set()
    for pick, found in pieces if state.channels else ():
        name = state.channels[pick % len(state.channels)].name
        ids = b"".join(struct.pack("<Q", id) for _, id in found)
        image += encode_entries(name, pack_entries(entry for entry, _ in found), ids)
        expected[name][0].extend(entry for entry, _ in found)
        expected[name][1].extend(id for _, id in found)
        followed.add(name)
    for before, channel in zip(state.channels, decode_snapshot(image).channels, strict=True):
        found, ids = expected[channel.name]
        assert list(unpack_entries(channel.entries)) == found
        unknown = len(before.entries) // ENTRY.size if channel.name in followed else 0
        assert channel.ids == bytes(8 * unknown) + struct.pack(f"<{len(ids)}Q", *ids)


def test_ids_that_do_not_fit_are_no_ids():
    image = encode_snapshot(TopicState(bytes(16), channels=(ChannelState("c"),)))
    packed = pack_entries([Entry(1, 1, 64), Entry(2, 1, 128)])
    image += encode_entries("c", packed, bytes(8))
    (channel,) = decode_snapshot(image).channels
    assert (channel.entries, channel.ids) == (packed, b"")


@pytest.mark.slow
@given(deltas)
def test_deltas_round_trip(delta):
    assert decode_delta(encode_delta(delta)) == delta


@given(part_lists)
def test_parts_of_producers_round_trip(parts):
    packed = b"".join(map(pack_part, parts))
    assert list(unpack_parts(packed)) == parts
    for cut in range(len(packed)):
        try:
            found = list(unpack_parts(packed[:cut]))
        except JournalError:
            continue
        assert found == parts[: len(found)]


def test_golden_bytes_of_cursors_and_producers():
    cursor = NamedCursor("c", b"fedcba9876543210", 5, -6)
    image = encode_snapshot(
        TopicState(
            bytes(16),
            cursors=(cursor,),
            epochs=(EpochState(1, 2, 3, pack_part(PartState(4, 5, ((6, 7),), True))),),
            produced_seq=8,
        )
    )
    packed = struct.pack("<HHIQ", 1, 0, 0, 5) + b"fedcba9876543210" + struct.pack("<q", -6) + b"c"
    parts = struct.pack("<IIQII", 4, 0x80000001, 5, 6, 7)
    table = struct.pack("<QQQqII", 8, 1, 2, 3, len(parts), 0) + parts
    assert image[4 + 8 + 40 :] == (
        struct.pack("<HHI", 9, 0, len(packed))
        + packed
        + struct.pack("<HHI", 10, 0, len(table))
        + table
    )
    delta = encode_delta(Delta(Kind.CURSOR_NAMED, "", cursor=cursor, deleted=True))
    assert delta == (
        struct.pack("<HHHHQ", 7, 1, 2, 1, 5) + b"cfedcba9876543210" + struct.pack("<q", -6)
    )


@pytest.mark.slow
@given(entry_lists)
def test_entries_round_trip(found):
    assert list(unpack_entries(pack_entries(found))) == found


@pytest.mark.slow
@settings(max_examples=runs(40))
@given(st.binary(max_size=200), topics, deltas, st.integers(0, 300), st.integers(0, 255))
def test_fuzz(data, state, delta, at, mask):
    """Any data is either decoded or refused."""
    for source in (
        data,
        struct.pack("<HH", 1, 1) + data,
        struct.pack("<HH", 5, 1) + data,
        struct.pack("<HHHHI", 1, 1, 5, 0, len(data)) + data,
        encode_snapshot(state),
        encode_delta(delta),
    ):
        damaged = bytearray(source)
        if damaged:
            damaged[at % len(damaged)] ^= mask
        for decode in (decode_snapshot, decode_delta):
            for cut in (len(damaged), at):
                try:
                    decode(bytes(damaged[:cut]))
                except JournalError:
                    pass


@pytest.mark.slow
@given(topics, st.integers(0, 400))
def test_a_cut_snapshot_is_refused_or_misses_whole_sections_only(state, cut):
    image = encode_snapshot(state)
    if cut >= len(image):
        return
    try:
        found = decode_snapshot(image[:cut])
    except JournalError:
        return
    assert found.channels == state.channels[: len(found.channels)]


class Model:
    """A journal in plain dictionaries."""

    def __init__(self, state):
        self.state = state
        self.channels = {
            c.name: [c.paused, c.cursor, list(unpack_entries(c.entries))] for c in state.channels
        }
        self.cursors = {}

    def apply(self, delta):
        if delta.cursor:
            self.cursors[delta.cursor.name] = None if delta.deleted else delta.cursor
            return
        channel = self.channels.get(delta.channel)
        match delta.kind:
            case Kind.CHANNEL_CREATED:
                self.channels.setdefault(delta.channel, [delta.paused, delta.value, []])
            case Kind.CHANNEL_DELETED:
                self.channels.pop(delta.channel, None)
            case Kind.CURSOR_MOVED if channel:
                channel[1] = delta.value
            case Kind.ENTRY_ADDED if channel:
                channel[2] = [e for e in channel[2] if e.seq != delta.entry.seq] + [delta.entry]
            case Kind.ENTRY_TRANSFERRED if channel:
                channel[2] = [e for e in channel[2] if e.seq != delta.value]
                if delta.entry is not None:
                    channel[2].append(delta.entry)
            case Kind.ENTRY_FINISHED if channel:
                channel[2] = [
                    e for e in channel[2] if e.seq != delta.value or e.state == State.MOVING
                ]


def few_names(delta, pick):
    known = ["a", "b", "c"]
    name = known[pick % 3]
    if delta.cursor:
        return replace(delta, cursor=replace(delta.cursor, name=name))
    entry = delta.entry._replace(seq=delta.entry.seq % 5) if delta.entry else None
    value = delta.value % 5
    if delta.kind == Kind.ENTRY_ADDED:
        entry = entry._replace(state=State(entry.state % 2))
    if delta.kind == Kind.ENTRY_TRANSFERRED and entry:
        entry = entry._replace(seq=value, state=State.MOVING)
    return replace(delta, channel=name, value=value, entry=entry)


@pytest.mark.slow
@settings(max_examples=runs(40))
@given(st.lists(st.tuples(deltas, st.integers(0, 2)), max_size=30))
def test_applying_agrees_with_the_model(changes):
    state = TopicState(bytes(16), 1, 1, False, (ChannelState("a"), ChannelState("b", True, 3)))
    model = Model(state)
    journal = [encode_snapshot(state)]
    gone = set()
    for delta, pick in changes:
        delta = few_names(delta, pick)
        if delta.kind == Kind.ENTRY_ADDED and (delta.channel, delta.entry.seq) in gone:
            continue  # finished messages are not redelivered
        if delta.kind in (Kind.ENTRY_FINISHED, Kind.ENTRY_TRANSFERRED):
            gone.add((delta.channel, delta.value))
        model.apply(delta)
        state = apply(state, delta)
        journal.append(encode_delta(delta))
    found = {c.name: [c.paused, c.cursor, list(unpack_entries(c.entries))] for c in state.channels}
    assert found == model.channels
    assert {c.name: c for c in state.cursors} == {n: c for n, c in model.cursors.items() if c}
    assert replay(journal) == state


def test_ids_stay_with_their_entries():
    state = TopicState(bytes(16), channels=(ChannelState("c"),))
    packed = pack_entries([Entry(seq, 1, 64 * seq) for seq in (1, 2, 3)])
    journal = [encode_snapshot(state) + encode_entries("c", packed, struct.pack("<3Q", 7, 8, 9))]
    journal.append(encode_delta(Delta(Kind.ENTRY_FINISHED, "c", 2)))
    journal.append(encode_delta(Delta(Kind.ENTRY_ADDED, "c", entry=Entry(1, 1, 64, 99))))
    journal.append(encode_delta(Delta(Kind.ENTRY_FINISHED, "c", 4)))
    found = replay(journal)
    assert found is not None
    (channel,) = found.channels
    assert list(unpack_entries(channel.entries)) == [Entry(3, 1, 192), Entry(1, 1, 64, 99)]
    assert struct.unpack("<2Q", channel.ids) == (9, 0)
    assert channel.cancelled == {2, 4}


def test_replay_stops_at_what_it_does_not_understand():
    state = TopicState(bytes(16), channels=(ChannelState("a"),))
    move = encode_delta(Delta(Kind.CURSOR_MOVED, "a", 7))
    later = encode_delta(Delta(Kind.CURSOR_MOVED, "a", 9))
    unknown = struct.pack("<HHHHQ", 99, 1, 0, 1, 0) + b"a"
    assert replay([]) is None
    assert replay([encode_snapshot(state), move, unknown, later]).channels[0].cursor == 7


def test_optional_sections_are_skipped_and_others_are_not():
    image = encode_snapshot(TopicState(bytes(16)))
    assert decode_snapshot(image + struct.pack("<HHI", 0x80FF, 0, 3) + b"new") == TopicState(
        bytes(16)
    )
    with pytest.raises(JournalError, match="unknown section 77"):
        decode_snapshot(image + struct.pack("<HHI", 77, 0, 0))


def test_a_newer_version_is_refused():
    with pytest.raises(JournalError, match="version 2 is newer than this nsqcy supports"):
        decode_snapshot(struct.pack("<HH", 1, 2))
    with pytest.raises(JournalError, match="does not start with a snapshot"):
        decode_snapshot(encode_delta(Delta(Kind.CHANNEL_DELETED, "a")))
    with pytest.raises(JournalError, match="without its topic"):
        decode_snapshot(struct.pack("<HH", 1, 1))


def moved(seq: int, *, delayed: bool = False) -> bytes:
    entry = Entry(seq, 1, 64 * seq, due=seq, attempts=5, state=State.MOVING)
    run = TransferRun(1, 77, "dead")
    return encode_delta(
        Delta(Kind.ENTRY_TRANSFERRED, "c", seq, entry=entry, run=run, delayed=delayed)
    )


def gone(seq: int) -> bytes:
    return encode_delta(Delta(Kind.ENTRY_TRANSFERRED, "c", seq))


def test_what_moves_is_an_entry_and_no_record_of_the_cursor() -> None:
    """The cursor of the snapshot is before the message, so it would be redelivered after a
    restart."""
    entries = pack_entries([Entry(2, 1, 64)])
    channel = ChannelState("c", False, 5, 1, entries, ((9, 10),))
    journal = [encode_snapshot(TopicState(bytes(16), 20, 12, False, (channel,)))]
    journal += [moved(2), moved(6), moved(7), moved(8), moved(15, delayed=True), gone(7), gone(15)]
    state = replay(journal)
    assert state is not None
    (found,) = state.channels
    assert [entry.seq for entry in unpack_entries(found.entries)] == [2, 6, 8]
    assert {entry.state for entry in unpack_entries(found.entries)} == {State.MOVING}
    assert found.finished == ((6, 10),)
    assert found.skipped == 4
    assert found.cancelled == {15}
    assert found.transfers == (TransferRun(1, 77, "dead"),)


def test_a_move_of_another_form_ends_the_journal() -> None:
    for cut in (1, 20, 40):
        with pytest.raises(JournalError):
            decode_delta(moved(2)[:-cut])


def test_ranges_without_others():
    assert without([(1, 9)], [(3, 5), (7, 8)]) == [(1, 3), (5, 7), (8, 9)]
    assert without([(1, 4), (6, 9)], [(2, 7)]) == [(1, 2), (7, 9)]
    assert without([(1, 4)], [(1, 4)]) == without([], [(1, 2)]) == []
    assert without([(4, 6)], [(1, 2), (8, 9)]) == without([(4, 6)], []) == [(4, 6)]
