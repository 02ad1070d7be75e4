"""Marks of what a worker reads, and what the next one leaves out after a death."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcy.names import is_valid_name
from nsqcy.nsqd.reading_marks import (
    MAGIC,
    PAGE,
    WHOLE_TOPIC,
    LeftOut,
    Mark,
    ReadingMarks,
    create_page,
    read,
)


@pytest.fixture
def page() -> Iterator[int]:
    fd = create_page()
    yield fd
    os.close(fd)


def test_a_new_page_has_no_mark(page: int) -> None:
    assert read(page) is None
    assert os.fstat(page).st_size == PAGE


@pytest.mark.parametrize("topic", ["t", "x" * 64, "some.topic#ephemeral"])
@pytest.mark.parametrize("block", [0, 1, 2**64 - 1])
def test_the_master_sees_the_latest_mark(page: int, topic: str, block: int) -> None:
    marks = ReadingMarks(page)
    marks.begin(b"earlier-topic-with-a-long-name", 5)
    marks.begin(topic.encode(), block)
    assert read(page) == Mark(topic, block)
    marks.end()
    assert read(page) is None


def test_a_name_that_is_too_long_is_no_mark(page: int) -> None:
    ReadingMarks(page).begin(b"x" * 65, 1)
    assert read(page) is None


@given(
    st.one_of(
        st.binary(max_size=120),
        st.builds(
            lambda block, length, name: MAGIC + block + length + name,
            st.binary(min_size=8, max_size=8),
            st.integers(0, 100).map(lambda length: length.to_bytes(2, "little")),
            st.binary(max_size=100),
        ),
    )
)
def test_a_page_may_contain_anything(content: bytes) -> None:
    fd = create_page()
    try:
        os.pwrite(fd, content, 0)
        found = read(fd)
        os.ftruncate(fd, len(content))
        truncated = read(fd)
    finally:
        os.close(fd)
    for mark in (found, truncated):
        assert mark is None or (content.startswith(MAGIC) and is_valid_name(mark.topic))


def test_a_descriptor_that_cannot_be_read() -> None:
    fd = os.open(os.devnull, os.O_WRONLY)
    try:
        assert read(fd) is None
    finally:
        os.close(fd)


# -- deaths


def test_the_first_death_leaves_out_the_block_and_the_second_the_topic() -> None:
    left_out = LeftOut()
    assert left_out.died_at(Mark("a", 3)) == Mark("a", 3)
    assert left_out.parts == [Mark("a", 3)]
    assert left_out.died_at(Mark("a", 4)) == Mark("a", WHOLE_TOPIC)
    assert left_out.parts == [Mark("a", WHOLE_TOPIC)]


def test_topics_are_counted_apart() -> None:
    left_out = LeftOut()
    for topic in "abc":
        assert left_out.died_at(Mark(topic, 3)) == Mark(topic, 3)
    assert left_out.died_at(Mark("b", 3)) == Mark("b", WHOLE_TOPIC)
    assert left_out.parts == [Mark("a", 3), Mark("c", 3), Mark("b", WHOLE_TOPIC)]


def test_a_death_in_the_state_leaves_out_the_topic() -> None:
    left_out = LeftOut()
    assert left_out.died_at(Mark("a", WHOLE_TOPIC)) == Mark("a", WHOLE_TOPIC)


def test_a_topic_is_left_out_once() -> None:
    left_out = LeftOut([Mark("a", WHOLE_TOPIC)])
    assert left_out.died_at(Mark("a", 3)) is None
    assert left_out.died_at(Mark("a", WHOLE_TOPIC)) is None
    assert left_out.parts == [Mark("a", WHOLE_TOPIC)]
