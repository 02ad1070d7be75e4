"""Names of nsq_to_file's files: tokens, time and revisions, and how names are recognised."""

import os
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nsqcy.tools.files import names
from nsqcy.tools.files.names import FileNames, FormatError

PLAIN = "<TOPIC>.<HOST><REV>.<DATETIME>.log"
HOUR = "%Y-%m-%d_%H"
NOON = 1_700_000_000  # 2023-11-14 22:13:20 UTC


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def file_names(format: str = PLAIN, datetime_format: str = HOUR, **changes) -> FileNames:
    given = {"topic": "t", "host": "h", "revisions": False, "pid": 77} | changes
    return FileNames(format, datetime_format, **given)


# --- time ---------------------------------------------------------------------------------------


def test_every_conversion() -> None:
    moment = time.localtime(NOON)
    format = "%Y %y %m %d %H %I %M %S %p %B %b %A %a %Z %z %%"
    shown = names.format_time(format, moment)
    assert shown == "2023 23 11 14 22 10 13 20 PM November Nov Tuesday Tue UTC +0000 %"


def test_other_percent_signs_and_words_of_go_are_text() -> None:
    assert names.format_time("%Q-%j-%e %é Jan Mon 2006 01 %", time.gmtime(NOON)) == (
        "%Q-%j-%e %é Jan Mon 2006 01 %"
    )


conversions = st.sampled_from([f"%{letter}" for letter in "YymdHIMSpBbAaz%"])
formats = st.lists(conversions | st.text("abc-_. /", max_size=3)).map("".join)
moments = st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1))


@pytest.mark.slow
@given(formats, moments, st.integers(-14 * 4, 14 * 4))
def test_as_datetime_has_it(format: str, moment: datetime, quarters: int) -> None:
    aware = moment.replace(tzinfo=timezone(timedelta(minutes=15 * quarters)))
    local = (*aware.timetuple()[:8], 0)
    there = time.struct_time(local, {"tm_gmtoff": 900 * quarters, "tm_zone": "XYZ"})
    assert names.format_time(format, there) == aware.strftime(format)


def test_zones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "XYZ7")  # the sign is reversed in POSIX
    time.tzset()
    assert names.format_time("%Z %z", time.localtime(NOON)) == "XYZ -0700"


def test_english_whatever_the_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "strftime", lambda *_: "Dienstag")
    assert names.format_time("%A %B %p", time.gmtime(NOON)) == "Tuesday November PM"


# --- names --------------------------------------------------------------------------------------


def test_the_default() -> None:
    assert file_names().at(NOON) == "t.h.2023-11-14_22.log"


def test_a_new_hour_is_a_new_name() -> None:
    of = file_names()
    assert of.at(NOON + 0.9) == of.at(NOON)
    assert of.at(NOON + 3600) == "t.h.2023-11-14_23.log"


@pytest.mark.parametrize(
    ("identifier", "host"),
    [("", "web1"), ("x-<SHORT_HOST>-<HOSTNAME>", "x-web1-web1.example.org"), ("own", "own")],
)
def test_hosts(identifier: str, host: str) -> None:
    assert names.host(identifier, "web1.example.org") == host


def test_the_process() -> None:
    assert file_names("<TOPIC>-<PID>").at(NOON) == "t-77"
    assert FileNames("<PID>", HOUR, topic="t", host="h", revisions=False).at(NOON) == str(
        os.getpid()
    )


def test_revisions() -> None:
    name = file_names(revisions=True).at(NOON)
    assert names.with_revision(name, 12) == "t.h-000012.2023-11-14_22.log"


def test_revisions_in_a_folder() -> None:
    name = file_names("<TOPIC><REV>/<DATETIME>", revisions=True).at(NOON)
    assert names.with_revision(name, 1) == "t-000001/2023-11-14_22"


def test_a_missing_revision() -> None:
    with pytest.raises(FormatError, match="missing <REV> in --filename-format when gzip"):
        file_names("<TOPIC>.log", revisions=True)


@pytest.mark.parametrize(("format", "name"), [("a<REV>", "a.gz"), ("a<REV>.gz", "a.gz")])
def test_a_suffix_once(format: str, name: str) -> None:
    of = file_names(format, revisions=True, suffix=".gz")
    assert of.at(NOON).replace(names.REV, "") == name


@pytest.mark.parametrize("format", ["<TOPIC>/x", "/etc/<TOPIC>", "a/../../x", "."])
def test_nobody_leaves_the_folder(format: str) -> None:
    with pytest.raises(FormatError, match="must stay in its directory"):
        file_names(format, topic="..")


# --- recognising --------------------------------------------------------------------------------

parts = st.sampled_from(["<TOPIC>", "<HOST>", "<PID>", "<DATETIME>", "-", ".log", "x/", "%Y"])


@given(
    st.lists(parts, min_size=1).map("".join),
    formats,
    moments,
    st.integers(0, 2_000_000),
    st.sampled_from(["t", "a.b", "x-1#ephemeral"]),
)
def test_a_name_is_recognised_and_opened_again(
    format: str, datetime_format: str, moment: datetime, revision: int, topic: str
) -> None:
    try:
        of = file_names(f"f{format}<REV>", datetime_format, topic=topic, revisions=True)
    except FormatError:
        assume(False)
    open_name = of.at(moment.timestamp())
    filled = names.with_revision(open_name, revision)
    levels = filled.split("/")
    assert of.depth() == len(levels) - 1
    assert all(of.is_part(level, part) for level, part in enumerate(levels))
    assert of.open_name(filled) == (open_name, revision)


def test_files_of_others_are_not_ours() -> None:
    of = file_names(revisions=True)
    ours = "t.h-000003.2023-11-14_22.log"
    assert of.is_part(0, ours)
    for other in (
        "t2.h-000003.2023-11-14_22.log",
        "t.h2-000003.2023-11-14_22.log",
        "t.h.2023-11-14_22.log",
        "t.h-000003.2023-11-14.log",
        ours + ".gz",
        ours.replace(".", "x"),
    ):
        assert not of.is_part(0, other), other


def test_files_of_earlier_processes_are() -> None:
    of = file_names("<TOPIC>.<PID><REV>", revisions=True)
    assert of.is_part(0, "t.4711-000000")
    assert of.open_name("t.4711-000000") == ("t.4711<REV>", 0)
