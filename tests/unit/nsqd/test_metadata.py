"""nsqd.dat: read, written, and never lost."""

import itertools
import json
import os
import stat
import threading

import gevent
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nsqcy.errors import StartError
from nsqcy.nsqd import known_topics as known_topics_module
from nsqcy.nsqd.known_topics import KnownTopics
from nsqcy.nsqd.master import metadata, metadata_changes
from nsqcy.nsqd.master.metadata import Store, dump, load


class Lines:
    """Log that keeps its lines."""

    def __init__(self):
        self.all = []

    def info(self, text, /, **fields):
        self.all.append(("info", text))

    def warn(self, text, /, **fields):
        self.all.append(("warn", text))

    def error(self, text, /, **fields):
        self.all.append(("error", text))


def read(tmp_path, content):
    (tmp_path / "nsqd.dat").write_bytes(content)
    lines = Lines()
    return load(str(tmp_path), lines), [text for _, text in lines.all]


def known_topics_of(**topics):
    known_topics = KnownTopics()
    for topic, channels in topics.items():
        known_topics.create_topic(topic)
        for channel in channels:
            known_topics.create_channel(topic, channel)
    return known_topics


@pytest.mark.case("C310")
def test_the_empty_file():
    assert dump(KnownTopics()) == b'{"topics":null,"version":"1.3.0"}'


@pytest.mark.case("C311")
def test_the_whole_file():
    known_topics = known_topics_of(t1=["c1", "e#ephemeral"], t2=[])
    known_topics.create_channel("gone#ephemeral", "c")
    known_topics.pause_topic("t1", True)
    known_topics.pause_channel("t1", "c1", True)
    assert dump(known_topics) == (
        b'{"topics":[{"name":"t1","paused":true,"channels":[{"name":"c1","paused":true}]},'
        b'{"name":"t2","paused":false,"channels":null}],"version":"1.3.0"}'
    )


def test_only_ephemeral_channels_make_a_null():
    known_topics = known_topics_of(t=["e#ephemeral"])
    assert json.loads(dump(known_topics))["topics"] == [
        {"name": "t", "paused": False, "channels": None}
    ]


def test_a_missing_file_is_a_fresh_start(tmp_path):
    assert list(load(str(tmp_path), Lines())) == []


@pytest.mark.parametrize("content", [b"{}", b"null", b'{"topics":null}', b'{"topics":[]}', b" {} "])
def test_nothing_in_it(tmp_path, content):
    known_topics, lines = read(tmp_path, content)
    assert (list(known_topics), lines) == ([], [])


@pytest.mark.case("C329")
def test_invalid_names_are_skipped(tmp_path):
    content = {
        "topics": [
            {"name": "bad name", "channels": [{"name": "c"}]},
            {"name": "good", "paused": True, "channels": [{"name": "$"}, {"name": "c"}]},
            {},
        ]
    }
    known_topics, lines = read(tmp_path, json.dumps(content).encode())
    assert list(known_topics) == ["good"]
    assert known_topics.entry("good") == {
        "name": "good",
        "paused": True,
        "channels": [{"name": "c", "paused": False}],
    }
    assert lines == [
        "skipping creation of invalid topic bad name",
        "skipping creation of invalid channel $",
        "skipping creation of invalid topic ",
    ]


def test_ephemeral_entries_written_by_hand_are_created(tmp_path):
    content = b'{"topics":[{"name":"t#ephemeral","channels":[{"name":"c#ephemeral"}]}]}'
    known_topics, _ = read(tmp_path, content)
    assert list(known_topics) == ["t#ephemeral"]
    assert list(known_topics.get("t#ephemeral").channels) == ["c#ephemeral"]


def test_keys_in_any_case_and_unknown_ones(tmp_path):
    content = b'{"Topics":[{"NAME":"t","extra":1,"Channels":[null,{"name":"c"}]}],"more":{}}'
    known_topics, lines = read(tmp_path, content)
    assert list(known_topics.get("t").channels) == ["c"]
    assert lines == ["skipping creation of invalid channel "]


@pytest.mark.case("C328")
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "unexpected end of JSON input"),
        (b"   ", "unexpected end of JSON input"),
        (b'{"topics":[', "unexpected end of JSON input"),
        (b'{"topics', "unexpected end of JSON input"),
        (b"{} x", "invalid character 'x' after top-level value"),
        (b"x", "invalid character 'x' looking for beginning of value"),
        (b'{"topics":x}', "invalid character 'x' looking for beginning of value"),
        (b'{"topics":NaN}', "invalid character 'N' looking for beginning of value"),
        (b"nul", "unexpected end of JSON input"),
        (b"nuts", "invalid character 't' in literal null (expecting 'l')"),
        (b'{"topics":{}}', "json: cannot unmarshal object into field topics (a list)"),
        (b'{"topics":[1]}', "json: cannot unmarshal number into an entry of topics"),
        (b'{"topics":[{"name":1}]}', "json: cannot unmarshal number into field name (a string)"),
        (
            b'{"topics":[{"paused":"no"}]}',
            "json: cannot unmarshal string into field paused (a bool)",
        ),
        (b"[]", "json: cannot unmarshal array into a metadata object"),
    ],
)
def test_malformed(tmp_path, content, reason):
    with pytest.raises(StartError) as caught:
        read(tmp_path, content)
    path = tmp_path / "nsqd.dat"
    assert str(caught.value) == (
        f"failed to load metadata - failed to parse metadata in {path} - {reason}"
    )
    assert path.read_bytes() == content


def test_an_invalid_entry_anywhere_loads_nothing(tmp_path):
    with pytest.raises(StartError):
        read(tmp_path, b'{"topics":[{"name":"t"},{"name":"u","channels":3}]}')


def test_a_file_that_cannot_be_read(tmp_path):
    (tmp_path / "nsqd.dat").mkdir()
    with pytest.raises(StartError, match=r"failed to read metadata from .*nsqd.dat - .*directory"):
        load(str(tmp_path), Lines())


@given(st.binary(max_size=200))
@example(b'{"topics":' + b"[" * 100_000)
@example(b'{"topics":1' + b"0" * 5000 + b"}")
@example(b'{"topics":[{"name":"\xff"}]}')
def test_any_bytes_load_or_are_refused(tmp_path_factory, content):
    try:
        read(tmp_path_factory.mktemp("fuzz"), content)
    except StartError as error:
        assert "failed to parse metadata" in str(error)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["topics", "name", "paused", "channels", "Name"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@pytest.mark.slow
@given(st.dictionaries(st.just("topics"), JSON))
def test_any_json_loads_or_is_refused(tmp_path_factory, value):
    try:
        known_topics, _ = read(tmp_path_factory.mktemp("fuzz"), json.dumps(value).encode())
    except StartError as error:
        assert "failed to parse metadata" in str(error)
    else:
        dump(known_topics)


CHANGES = st.tuples(
    st.sampled_from(["create", "delete", "pause", "unpause"]),
    st.sampled_from(["a", "b", "c#ephemeral"]),
    st.sampled_from([None, "x", "y", "z#ephemeral"]),
)


@given(st.lists(CHANGES, max_size=30))
def test_what_is_written_is_read_again(tmp_path_factory, changes):
    known_topics = KnownTopics()
    for what, topic, channel in changes:
        change(known_topics, what, topic, channel)
    read_again, lines = read(tmp_path_factory.mktemp("trip"), dump(known_topics))
    assert lines == []
    assert dump(read_again) == dump(known_topics)


@given(st.lists(CHANGES, max_size=30))
def test_each_change_is_written(changes):
    """Changes are written even if the content was encoded many times before."""
    known_topics = KnownTopics()
    for what, topic, channel in changes:
        change(known_topics, what, topic, channel)
        entries = [known_topics.entry(each) for each in known_topics if "#" not in each]
        for entry in entries:
            kept = [each for each in entry["channels"] if "#" not in each["name"]]
            entry["channels"] = kept or None
        content = {"topics": entries or None, "version": "1.3.0"}
        assert dump(known_topics) == json.dumps(content, separators=(",", ":")).encode()


def test_only_what_has_changed_is_encoded_again(monkeypatch):
    """Encoding many topics for each change would take long."""
    known_topics = known_topics_of(**{f"t{number}": ["c"] for number in range(100)})
    dump(known_topics)
    encoded, quoted = [], known_topics_module.quoted
    monkeypatch.setattr(
        known_topics_module, "quoted", lambda name: encoded.append(name) or quoted(name)
    )
    known_topics.pause_channel("t7", "c", True)
    dump(known_topics)
    assert sorted(encoded) == ["c", "t7"]


def change(known_topics, what, topic, channel):
    pausing = what == "pause"
    match what, channel:
        case "create", None:
            known_topics.create_topic(topic)
        case "create", _:
            known_topics.create_channel(topic, channel)
        case "delete", None:
            known_topics.delete_topic(topic)
        case "delete", _:
            known_topics.delete_channel(topic, channel)
        case _, None:
            known_topics.pause_topic(topic, pausing)
        case _:
            known_topics.pause_channel(topic, channel, pausing)


def test_changes_say_whether_they_changed_anything():
    known_topics = KnownTopics()
    assert known_topics.create_channel("t", "c")
    assert not known_topics.create_topic("t")
    assert not known_topics.create_channel("t", "c")
    assert known_topics.pause_channel("t", "c", True)
    assert not known_topics.pause_channel("t", "c", True)
    assert not known_topics.pause_channel("t", "other", True)
    assert not known_topics.pause_topic("other", True)
    assert known_topics.delete_channel("t", "c")
    assert not known_topics.delete_channel("t", "c")
    assert not known_topics.delete_channel("other", "c")
    assert known_topics.delete_topic("t")
    assert not known_topics.delete_topic("t")


def test_what_dies_with_a_worker():
    known_topics = known_topics_of(t=["c", "e#ephemeral"], u=["e#ephemeral"])
    known_topics.create_topic("x#ephemeral")
    known_topics.create_topic("y#ephemeral")
    assert known_topics.forget_ephemeral({"t", "x#ephemeral", "never"}) == ["x#ephemeral"]
    assert list(known_topics) == ["t", "u", "y#ephemeral"]
    assert list(known_topics.get("t").channels) == ["c"]
    assert list(known_topics.get("u").channels) == ["e#ephemeral"]


def test_directories_not_listed_are_adopted(tmp_path):
    for name in ("known.topic", "lost.topic", "...topic", "not a name.topic", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "file.topic").write_text("no directory")
    known_topics, lines = read(tmp_path, b'{"topics":[{"name":"known","paused":true}]}')
    assert list(known_topics) == ["known", "..", "lost"]
    assert known_topics.get("known").paused
    assert lines == [
        f"adopting topic {name}: it has a directory but is not in nsqd.dat"
        for name in ("..", "lost")
    ]


def test_the_file_is_replaced_whole_and_private(tmp_path):
    (tmp_path / "nsqd.dat").write_text("{}")
    metadata.replace_file(str(tmp_path), b"new")
    assert sorted(os.listdir(tmp_path)) == ["nsqd.dat", "previous"]
    assert (tmp_path / "nsqd.dat").read_bytes() == b"new"
    assert stat.S_IMODE((tmp_path / "nsqd.dat").stat().st_mode) == 0o600


def test_the_version_before_is_used_if_the_file_is_damaged_or_missing(tmp_path):
    store = Store(known_topics_of(t=["c"]), str(tmp_path), Lines())
    store.persist()
    store.persist()
    file = tmp_path / "nsqd.dat"
    content = file.read_bytes()
    assert json.loads(content)["topics"] == [
        {"name": "t", "paused": False, "channels": [{"name": "c", "paused": False}]}
    ]
    for bad in (b"", content[:-9], None):
        file.write_bytes(bad) if bad is not None else file.unlink()
        lines = Lines()
        assert list(load(str(tmp_path), lines)) == ["t"]
        assert [level for level, _ in lines.all] == ["error"]
        assert f"nsqd uses {tmp_path}/previous/nsqd.dat" in lines.all[0][1]


def test_with_no_good_version_the_topics_come_from_their_directories(tmp_path):
    (tmp_path / "previous").mkdir()
    for name in ("nsqd.dat", "previous/nsqd.dat"):
        (tmp_path / name).write_bytes(b"{")
    (tmp_path / "t.topic").mkdir()
    lines = Lines()
    assert list(load(str(tmp_path), lines)) == ["t"]
    assert [level for level, _ in lines.all] == ["error", "error", "warn"]


def test_nsq_or_a_user_may_write_the_file(tmp_path):
    Store(known_topics_of(t=[]), str(tmp_path), Lines()).persist()
    known_topics, lines = read(tmp_path, dump(known_topics_of(u=["c"])))
    assert list(known_topics) == ["u"]
    path = tmp_path / "nsqd.dat"
    assert lines == [f"{path} was written by another program, or edited: using it unchanged"]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch, capfd):
    (tmp_path / "nsqd.dat").write_text("old")

    def fail(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    lines = Lines()
    with pytest.raises(OSError, match="No space"):
        Store(KnownTopics(), str(tmp_path), lines).persist()
    assert (tmp_path / "nsqd.dat").read_text() == "old"
    assert lines.all[-1][0] == "error"
    assert "no space left on device" in lines.all[-1][1]
    assert capfd.readouterr().err == ""  # the thread pool does not print the error


class SlowWrites:
    """Writes that wait for a signal, and the content that each one would have written."""

    def __init__(self, monkeypatch):
        self.contents = []
        self.go = threading.Semaphore(0)
        monkeypatch.setattr(metadata, "replace_file", self._replace)

    def _replace(self, data_path, content):
        self.contents.append(json.loads(content)["topics"])
        assert self.go.acquire(timeout=30)


def test_who_waits_gets_a_write_that_began_after_it_asked(monkeypatch):
    writes = SlowWrites(monkeypatch)
    known_topics = KnownTopics()
    store = Store(known_topics, "", Lines())
    known_topics.create_topic("a")
    first = gevent.spawn(store.persist)
    while not writes.contents:
        gevent.sleep(0.001)
    known_topics.create_topic("b")
    later = [gevent.spawn(store.persist) for _ in range(3)]
    gevent.sleep(0)
    writes.go.release()
    first.join(30)
    assert first.successful() and not any(greenlet.ready() for greenlet in later)
    writes.go.release()
    gevent.joinall(later, timeout=30, raise_error=True)
    assert [[topic["name"] for topic in each] for each in writes.contents] == [["a"], ["a", "b"]]


def test_creations_share_a_write_and_a_deleted_topic_is_never_written(monkeypatch):
    writes = SlowWrites(monkeypatch)
    writes.go.release(100)
    known_topics = KnownTopics()
    store = Store(known_topics, "", Lines())
    for name in ("a", "b", "c"):
        known_topics.create_topic(name)
        store.persist_soon()
    known_topics.delete_topic("b")
    while not writes.contents:
        gevent.sleep(0.001)
    assert [topic["name"] for topic in writes.contents[0]] == ["a", "c"]
    assert len(writes.contents) == 1


def test_what_changes_during_a_write_is_written_after_it(monkeypatch):
    writes = SlowWrites(monkeypatch)
    known_topics = KnownTopics()
    store = Store(known_topics, "", Lines())
    store.persist_soon()
    while not writes.contents:
        gevent.sleep(0.001)
    known_topics.create_topic("a")
    store.persist_soon()
    writes.go.release(2)
    while len(writes.contents) < 2:
        gevent.sleep(0.001)
    assert [topic["name"] for topic in writes.contents[1]] == ["a"]


def test_changes_gather_after_a_write_that_took_long(monkeypatch):
    """Thousands of deletions, one by one, must not each write the names of all topics."""
    writes = SlowWrites(monkeypatch)
    monkeypatch.setattr(metadata, "MAX_REST", 0.2)
    known_topics = known_topics_of(a=[], b=[], c=[], d=[])
    store = Store(known_topics, "", Lines())
    first = gevent.spawn(store.persist)
    while not writes.contents:
        gevent.sleep(0.001)
    monkeypatch.setattr(metadata, "REST", 1e9)
    writes.go.release(10)
    first.join(30)
    for name in "abc":
        known_topics.delete_topic(name)
        store.persist_now()
        gevent.sleep(0)
    assert len(writes.contents) == 1
    while len(writes.contents) < 2:
        gevent.sleep(0.001)
    assert [topic["name"] for topic in writes.contents[1]] == ["d"]


def test_who_waits_does_not_wait_for_other_changes(monkeypatch):
    writes = SlowWrites(monkeypatch)
    writes.go.release(10)
    monkeypatch.setattr(metadata, "REST", 1e9)
    monkeypatch.setattr(metadata, "MAX_REST", 1e9)
    known_topics = known_topics_of(a=[], b=[])
    store = Store(known_topics, "", Lines())
    store.persist()
    known_topics.delete_topic("a")
    store.persist_now()
    store.catch_up()
    assert [topic["name"] for topic in writes.contents[1]] == ["b"]


# -- slices


@pytest.fixture
def sliced(monkeypatch):
    """Encoding gives way after each three topics and channels, or lines."""
    monkeypatch.setattr(metadata, "SLICE", 3)
    monkeypatch.setattr(metadata_changes, "SLICE", 3)


def test_a_turn_encodes_a_slice(tmp_path, monkeypatch, sliced):
    """Encoding all names at once would delay the hub."""
    turns, quoted = [[]], known_topics_module.quoted
    monkeypatch.setattr(
        known_topics_module, "quoted", lambda name: turns[-1].append(name) or quoted(name)
    )
    topics = {f"t{number}": [] for number in range(7)}
    known_topics = known_topics_of(**topics, wide=[f"c{number}" for number in range(8)])
    Store(known_topics, str(tmp_path), Lines(), lambda: turns.append([])).persist()
    assert sum(map(len, turns)) == 16
    assert max(map(len, turns)) <= 3
    assert loaded(tmp_path) == (dump(known_topics), [])


def test_a_turn_encodes_a_slice_of_changes(tmp_path, monkeypatch, sliced, resting):
    turns = [0]
    known_topics = known_topics_of(t=[])
    store = Store(known_topics, str(tmp_path), Lines(), lambda: turns.append(0))
    store.persist()
    signed = metadata_changes.state_file.signed

    def count(content):
        turns[-1] += 1
        return signed(content)

    monkeypatch.setattr(metadata_changes.state_file, "signed", count)
    for number in range(8):
        known_topics.create_topic(f"t{number}")
    store.catch_up()
    assert turns == [3, 3, 3]  # one is the head of the file
    assert loaded(tmp_path) == (dump(known_topics), [])


@given(
    before=st.lists(st.deferred(lambda: CHANGES), max_size=20),
    between=st.lists(st.deferred(lambda: CHANGES), max_size=20),
)
def test_changes_between_slices_belong_to_the_next_write(tmp_path_factory, before, between):
    """A kill at any step leaves what was on disk before it."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("LARGE", 0), ("REST", 1e9), ("MAX_REST", 1e9), ("SLICE", 1)):
            patch.setattr(metadata, name, value)
        patch.setattr(metadata_changes, "SLICE", 1)
        path = tmp_path_factory.mktemp("slices")
        known_topics = known_topics_of(a=["x"], b=["x", "y"], d=[])
        changes = iter(())

        def killed_here():
            assert loaded(path)[0] == on_disk

        def give_way():
            killed_here()
            for each in itertools.islice(changes, 1):
                change(known_topics, *each)

        on_disk = dump(KnownTopics())
        store = Store(known_topics, str(path), Lines(), give_way)
        store.persist()
        on_disk = dump(known_topics)
        for each in before:
            change(known_topics, *each)
        moment, changes = dump(known_topics), iter(between)
        store.persist()
        on_disk = moment
        killed_here()
        while True:
            moment, version = dump(known_topics), known_topics.version
            store.catch_up()
            on_disk = moment
            killed_here()
            if known_topics.version == version:
                break


def test_a_view_keeps_its_moment():
    known_topics = known_topics_of(t=["c", "e#ephemeral"], gone=[])
    view = known_topics.view()
    known_topics.pause_topic("t", True)
    known_topics.forget_ephemeral({"t"})
    known_topics.delete_topic("gone")
    known_topics.create_topic("gone")
    known_topics.create_channel("gone", "new")
    assert view.names == ["t", "gone"]
    assert [each.channels for each in view.topics] == [{"c": False, "e#ephemeral": False}, {}]
    assert [each.paused for each in view.topics] == [False, False]
    again = KnownTopics()
    again.replace(known_topics)
    view = again.view()
    again.pause_topic("t", False)
    assert view.topics[0].paused


# -- changes that are appended


@pytest.fixture
def resting(monkeypatch):
    """Files of any size are large, and nsqd.dat is written only if a caller waits for it."""
    monkeypatch.setattr(metadata, "LARGE", 0)
    monkeypatch.setattr(metadata, "REST", 1e9)
    monkeypatch.setattr(metadata, "MAX_REST", 1e9)


def started(tmp_path, known_topics):
    store = Store(known_topics, str(tmp_path), Lines())
    store.persist()
    return store


def loaded(tmp_path):
    """Return the topics after a crash, and the logged lines."""
    lines = Lines()
    return dump(load(str(tmp_path), lines)), [text for _, text in lines.all]


def test_a_change_of_a_large_file_is_appended(tmp_path, resting):
    known_topics = known_topics_of(t=["c"], u=["d"])
    store = started(tmp_path, known_topics)
    before = (tmp_path / "nsqd.dat").read_bytes()
    known_topics.delete_topic("u")
    known_topics.create_channel("t", "e#ephemeral")
    known_topics.pause_channel("t", "c", True)
    store.catch_up()
    assert (tmp_path / "nsqd.dat").read_bytes() == before
    assert loaded(tmp_path) == (dump(known_topics), [])
    store.persist()
    assert (tmp_path / "nsqd.dat").read_bytes() == dump(known_topics)
    assert not (tmp_path / "nsqd.dat.changes").exists()


def test_a_small_file_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(metadata, "REST", 1e9)
    known_topics = known_topics_of(t=[], u=[])
    store = started(tmp_path, known_topics)
    known_topics.delete_topic("t")
    store.catch_up()
    assert (tmp_path / "nsqd.dat").read_bytes() == dump(known_topics)


def test_the_file_follows_after_a_rest(tmp_path, monkeypatch, resting):
    known_topics = known_topics_of(t=[], u=[])
    monkeypatch.setattr(metadata, "MAX_REST", 0.2)
    store = started(tmp_path, known_topics)
    monkeypatch.setattr(metadata, "MAX_REST", 1e9)
    known_topics.delete_topic("t")
    store.catch_up()
    while (tmp_path / "nsqd.dat").read_bytes() != dump(known_topics):
        gevent.sleep(0.01)


STEPS = st.lists(CHANGES | st.sampled_from(["append", "replace"]), max_size=30)


@pytest.mark.parametrize("damage", ["", "newest", "unfinished"])
@given(steps=STEPS)
def test_a_crash_at_any_time_undoes_no_change_on_disk(tmp_path_factory, damage, steps):
    """Also if nsqd.dat is damaged, or if its write has ended and the changes are still there."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("LARGE", 0), ("REST", 1e9), ("MAX_REST", 1e9)):
            patch.setattr(metadata, name, value)
        path = tmp_path_factory.mktemp("crash")
        known_topics = KnownTopics()
        store = started(path, known_topics)
        for step in steps:
            if step == "append":
                store.catch_up()
            elif step == "replace":
                store.catch_up()
                store.persist()
            else:
                change(known_topics, *step)
        store.catch_up()
        if damage == "unfinished":
            patch.setattr(metadata_changes.ChangeLog, "restart", lambda log: None)
            store.persist()
        if damage == "newest" and (path / "previous/nsqd.dat").exists():
            (path / "nsqd.dat").write_bytes(b"{")
        assert loaded(path)[0] == dump(known_topics)


def test_every_beginning_of_the_file_is_a_moment_before(tmp_path, resting):
    known_topics = known_topics_of(t=["c"])
    store = started(tmp_path, known_topics)
    moments = [dump(known_topics)]
    for what, topic, channel in (
        ("create", "u", None),
        ("pause", "t", "c"),
        ("delete", "t", None),
        ("create", "t", "d"),
    ):
        change(known_topics, what, topic, channel)
        store.catch_up()
        moments.append(dump(known_topics))
    file = tmp_path / "nsqd.dat.changes"
    content = file.read_bytes()
    found = []
    for size in range(len(content) + 1):
        file.write_bytes(content[:size])
        known, lines = loaded(tmp_path)
        assert lines == []
        if known not in found[-1:]:
            found.append(known)
    # t and its channel are two lines
    assert [each for each in found if each in moments] == moments
    assert len(found) <= len(moments) + 1


def test_a_damaged_line_costs_that_line(tmp_path, resting):
    known_topics = known_topics_of(t=[])
    store = started(tmp_path, known_topics)
    for name in "abc":
        known_topics.create_topic(name)
        store.catch_up()
    file = tmp_path / "nsqd.dat.changes"
    lines = file.read_bytes().splitlines(keepends=True)
    for place, old, new, expected in (
        (2, b":", b";", ["t", "a", "c"]),
        (2, b"checksum", b"chexksum", ["t", "a", "c"]),
        (3, b'"c"', b'"d"', ["t", "a", "b"]),
        (0, b":", b";", ["t"]),
    ):
        broken = [*lines]
        broken[place] = broken[place].replace(old, new, 1)
        file.write_bytes(b"".join(broken))
        known, logged = loaded(tmp_path)
        assert [each["name"] for each in json.loads(known)["topics"]] == expected
        assert "1 of 4 lines cannot be read; nsqd uses the intact changes" in logged[0]


def test_changes_of_a_newer_version_are_refused(tmp_path, resting):
    known_topics = known_topics_of(t=[])
    store = started(tmp_path, known_topics)
    known_topics.create_topic("u")
    store.catch_up()
    file = tmp_path / "nsqd.dat.changes"
    head, rest = file.read_bytes().split(b"\n", 1)
    newer = metadata_changes.state_file.parse_object(head) | {"version": 2}
    signed = metadata_changes.state_file.signed(json.dumps(newer).encode())
    file.write_bytes(signed + b"\n" + rest)
    text = r"changes: nsqd\.dat\.changes format version 2 is newer than this nsqcy supports \(1\)"
    with pytest.raises(StartError, match=text):
        loaded(tmp_path)
    assert file.read_bytes() == signed + b"\n" + rest


def test_changes_belong_to_one_version_of_the_file(tmp_path, resting):
    """Content that NSQ or a user wrote counts without them, and so does a restored version."""
    known_topics = known_topics_of(t=[], u=[])
    store = started(tmp_path, known_topics)
    first = dump(known_topics)
    known_topics.delete_topic("u")
    store.catch_up()
    theirs = dump(known_topics_of(u=[], v=[]))
    (tmp_path / "nsqd.dat").write_bytes(theirs)
    assert loaded(tmp_path)[0] == theirs
    (tmp_path / "nsqd.dat").write_bytes(first)
    store.persist()
    (tmp_path / "nsqd.dat").write_bytes(first)
    assert loaded(tmp_path)[0] == first


def test_a_change_that_cannot_be_appended_replaces_the_file(tmp_path, monkeypatch, resting):
    known_topics = known_topics_of(t=[], u=[], v=[])
    store = started(tmp_path, known_topics)

    def fail(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", fail)
    known_topics.delete_topic("u")
    store.catch_up()
    assert (tmp_path / "nsqd.dat").read_bytes() == dump(known_topics)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        known_topics.delete_topic("v")
        with pytest.raises(OSError, match="No space"):
            store.catch_up()
    monkeypatch.undo()
    store.catch_up()
    assert loaded(tmp_path)[0] == dump(known_topics)


def test_more_changes_than_are_kept_replace_the_file(tmp_path, monkeypatch, resting):
    monkeypatch.setattr(known_topics_module, "MAX_CHANGES", 3)
    known_topics = known_topics_of(t=[])
    store = started(tmp_path, known_topics)
    for name in "abcd":
        known_topics.create_topic(name)
    store.catch_up()
    assert (tmp_path / "nsqd.dat").read_bytes() == dump(known_topics)
