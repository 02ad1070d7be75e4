"""nsqd.dat: read, written, never lost."""

import json
import os
import stat
import threading

import gevent
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nsqcy.errors import StartError
from nsqcy.nsqd.master import metadata
from nsqcy.nsqd.master.metadata import Picture, Store, dump, load


class Lines:
    """A log that keeps its lines."""

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


def picture_of(**topics):
    picture = Picture()
    for topic, channels in topics.items():
        picture.create_topic(topic)
        for channel in channels:
            picture.create_channel(topic, channel)
    return picture


@pytest.mark.case("C310")
def test_the_empty_file():
    assert dump(Picture()) == b'{"topics":null,"version":"1.3.0"}'


@pytest.mark.case("C311")
def test_the_whole_file():
    picture = picture_of(t1=["c1", "e#ephemeral"], t2=[])
    picture.create_channel("gone#ephemeral", "c")
    picture.pause_topic("t1", True)
    picture.pause_channel("t1", "c1", True)
    assert dump(picture) == (
        b'{"topics":[{"name":"t1","paused":true,"channels":[{"name":"c1","paused":true}]},'
        b'{"name":"t2","paused":false,"channels":null}],"version":"1.3.0"}'
    )


def test_only_ephemeral_channels_make_a_null():
    picture = picture_of(t=["e#ephemeral"])
    assert json.loads(dump(picture))["topics"] == [{"name": "t", "paused": False, "channels": None}]


def test_a_missing_file_is_a_fresh_start(tmp_path):
    assert list(load(str(tmp_path), Lines())) == []


@pytest.mark.parametrize("content", [b"{}", b"null", b'{"topics":null}', b'{"topics":[]}', b" {} "])
def test_nothing_in_it(tmp_path, content):
    picture, lines = read(tmp_path, content)
    assert (list(picture), lines) == ([], [])


@pytest.mark.case("C329")
def test_invalid_names_are_skipped(tmp_path):
    content = {
        "topics": [
            {"name": "bad name", "channels": [{"name": "c"}]},
            {"name": "good", "paused": True, "channels": [{"name": "$"}, {"name": "c"}]},
            {},
        ]
    }
    picture, lines = read(tmp_path, json.dumps(content).encode())
    assert list(picture) == ["good"]
    assert picture.entry("good") == {
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
    picture, _ = read(tmp_path, content)
    assert list(picture) == ["t#ephemeral"]
    assert list(picture.get("t#ephemeral").channels) == ["c#ephemeral"]


def test_keys_in_any_case_and_unknown_ones(tmp_path):
    content = b'{"Topics":[{"NAME":"t","extra":1,"Channels":[null,{"name":"c"}]}],"more":{}}'
    picture, lines = read(tmp_path, content)
    assert list(picture.get("t").channels) == ["c"]
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


@given(st.dictionaries(st.just("topics"), JSON))
def test_any_json_loads_or_is_refused(tmp_path_factory, value):
    try:
        picture, _ = read(tmp_path_factory.mktemp("fuzz"), json.dumps(value).encode())
    except StartError as error:
        assert "failed to parse metadata" in str(error)
    else:
        dump(picture)


CHANGES = st.tuples(
    st.sampled_from(["create", "delete", "pause", "unpause"]),
    st.sampled_from(["a", "b", "c#ephemeral"]),
    st.sampled_from([None, "x", "y", "z#ephemeral"]),
)


@given(st.lists(CHANGES, max_size=30))
def test_what_is_written_is_read_again(tmp_path_factory, changes):
    picture = Picture()
    for what, topic, channel in changes:
        change(picture, what, topic, channel)
    read_again, lines = read(tmp_path_factory.mktemp("trip"), dump(picture))
    assert lines == []
    assert dump(read_again) == dump(picture)


def change(picture, what, topic, channel):
    pausing = what == "pause"
    match what, channel:
        case "create", None:
            picture.create_topic(topic)
        case "create", _:
            picture.create_channel(topic, channel)
        case "delete", None:
            picture.delete_topic(topic)
        case "delete", _:
            picture.delete_channel(topic, channel)
        case _, None:
            picture.pause_topic(topic, pausing)
        case _:
            picture.pause_channel(topic, channel, pausing)


def test_changes_say_whether_they_changed_anything():
    picture = Picture()
    assert picture.create_channel("t", "c")
    assert not picture.create_topic("t")
    assert not picture.create_channel("t", "c")
    assert picture.pause_channel("t", "c", True)
    assert not picture.pause_channel("t", "c", True)
    assert not picture.pause_channel("t", "other", True)
    assert not picture.pause_topic("other", True)
    assert picture.delete_channel("t", "c")
    assert not picture.delete_channel("t", "c")
    assert not picture.delete_channel("other", "c")
    assert picture.delete_topic("t")
    assert not picture.delete_topic("t")


def test_what_dies_with_a_worker():
    picture = picture_of(t=["c", "e#ephemeral"], u=["e#ephemeral"])
    picture.create_topic("x#ephemeral")
    picture.create_topic("y#ephemeral")
    assert picture.forget_ephemeral({"t", "x#ephemeral", "never"}) == ["x#ephemeral"]
    assert list(picture) == ["t", "u", "y#ephemeral"]
    assert list(picture.get("t").channels) == ["c"]
    assert list(picture.get("u").channels) == ["e#ephemeral"]


def test_directories_not_listed_are_adopted(tmp_path):
    for name in ("known.topic", "lost.topic", "...topic", "not a name.topic", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "file.topic").write_text("no directory")
    picture, lines = read(tmp_path, b'{"topics":[{"name":"known","paused":true}]}')
    assert list(picture) == ["known", "..", "lost"]
    assert picture.get("known").paused
    assert lines == [
        f"adopting topic {name}: it has a directory but is not in nsqd.dat"
        for name in ("..", "lost")
    ]


def test_the_file_is_replaced_whole_and_private(tmp_path):
    (tmp_path / "nsqd.dat").write_text("old")
    metadata.replace_file(str(tmp_path), b"new")
    assert os.listdir(tmp_path) == ["nsqd.dat"]
    assert (tmp_path / "nsqd.dat").read_bytes() == b"new"
    assert stat.S_IMODE((tmp_path / "nsqd.dat").stat().st_mode) == 0o600


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch, capfd):
    (tmp_path / "nsqd.dat").write_text("old")

    def fail(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    lines = Lines()
    with pytest.raises(OSError, match="No space"):
        Store(Picture(), str(tmp_path), lines).persist()
    assert (tmp_path / "nsqd.dat").read_text() == "old"
    assert lines.all[-1][0] == "error"
    assert "no space left on device" in lines.all[-1][1]
    assert capfd.readouterr().err == ""  # the log has it, and no pool of threads prints it too


class SlowWrites:
    """Writes that wait for a word; what each would have put on the disk."""

    def __init__(self, monkeypatch):
        self.contents = []
        self.go = threading.Semaphore(0)
        monkeypatch.setattr(metadata, "replace_file", self._replace)

    def _replace(self, data_path, content):
        self.contents.append(json.loads(content)["topics"])
        assert self.go.acquire(timeout=30)


def test_who_waits_gets_a_write_that_began_after_it_asked(monkeypatch):
    writes = SlowWrites(monkeypatch)
    picture = Picture()
    store = Store(picture, "", Lines())
    picture.create_topic("a")
    first = gevent.spawn(store.persist)
    while not writes.contents:
        gevent.sleep(0.001)
    picture.create_topic("b")
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
    picture = Picture()
    store = Store(picture, "", Lines())
    for name in ("a", "b", "c"):
        picture.create_topic(name)
        store.persist_soon()
    picture.delete_topic("b")
    while not writes.contents:
        gevent.sleep(0.001)
    assert [topic["name"] for topic in writes.contents[0]] == ["a", "c"]
    assert len(writes.contents) == 1


def test_what_changes_during_a_write_is_written_after_it(monkeypatch):
    writes = SlowWrites(monkeypatch)
    picture = Picture()
    store = Store(picture, "", Lines())
    store.persist_soon()
    while not writes.contents:
        gevent.sleep(0.001)
    picture.create_topic("a")
    store.persist_soon()
    writes.go.release(2)
    while len(writes.contents) < 2:
        gevent.sleep(0.001)
    assert [topic["name"] for topic in writes.contents[1]] == ["a"]
