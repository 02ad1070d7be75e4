"""Epochs of a log's records: where two copies begin to differ, against lists of records."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from nsqcy.copies.history import History


@dataclass
class Copy:
    """A copy that keeps the epoch of each record beside its history."""

    epochs: list[int] = field(default_factory=list)
    history: History = field(default_factory=History)

    def append(self, epoch: int, count: int) -> None:
        self.history.begin(epoch, len(self.epochs))
        self.epochs += [epoch] * count

    def cut(self, end: int) -> None:
        del self.epochs[end:]
        self.history.cut(end)

    def follow(self, owner: "Copy", limit: int) -> None:
        """Receive at most `limit` of the owner's records, after cutting what it does not have."""
        end = self.common_end(owner)
        self.cut(end)
        for epoch in owner.epochs[end : end + limit]:
            self.append(epoch, 1)

    def common_end(self, other: "Copy") -> int:
        return self.history.common_end(len(self.epochs), other.history, len(other.epochs))


def equal_records(first: list[int], second: list[int]) -> int:
    pairs = zip(first, second, strict=False)
    return next((seq for seq, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("own"), st.integers(0, 2), st.integers(1, 3)),
        st.tuples(st.just("append"), st.integers(1, 3)),
        st.tuples(st.just("follow"), st.integers(0, 2), st.integers(1, 9)),
    ),
    max_size=40,
)


@given(STEPS)
def test_common_end(steps: list[tuple]) -> None:
    copies = [Copy() for _ in range(3)]
    owner, epoch = copies[0], 1
    for step in steps:
        match step:
            case "own", index, count:
                owner, epoch = copies[index], epoch + 1
                owner.append(epoch, count)
            case "append", count:
                owner.append(epoch, count)
            case "follow", index, limit if copies[index] is not owner:
                copies[index].follow(owner, limit)
        for first in copies:
            for second in copies:
                assert first.common_end(second) == equal_records(first.epochs, second.epochs)


def test_an_epoch_without_records_is_forgotten() -> None:
    history = History()
    history.begin(1, 0)
    history.begin(2, 5)
    history.begin(3, 5)
    assert history.marks == [(1, 0), (3, 5)]


def test_a_cut_keeps_the_epochs_before_it() -> None:
    history = History([(1, 0), (2, 5), (4, 9)])
    history.cut(9)
    assert history.marks == [(1, 0), (2, 5)]
    history.cut(5)
    assert history.marks == [(1, 0)]
