"""The checker finds every kind of fault that is added to a faultless history, and nothing else."""

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import assume, settings
from hypothesis import given as given_any
from hypothesis import strategies as st

from crash.checker import Findings, check
from crash.history import (
    Answered,
    Attempted,
    Created,
    Died,
    Event,
    Finished,
    Received,
    Refused,
    Requeued,
    story,
)
from support.runs import runs

TOPICS = ["t", "u"]
CHANNELS = ["c", "d"]
CHECKPOINT = 5.0
END = 1000.0
BEFORE, LATER = -1.0, END + 1.0


def given(*strategies: st.SearchStrategy) -> Callable[[Callable], Callable]:
    return lambda test: settings(max_examples=runs(50), deadline=None)(given_any(*strategies)(test))


gaps = st.floats(0.001, 10)
delays = st.sampled_from([0.0, 0.0, 0.5, 20.0])


@dataclass
class Faultless:
    """History in which every guarantee holds, with each message's outcome."""

    events: list[Event] = field(default_factory=list)
    fates: dict[str, bool | None] = field(default_factory=dict)
    topics: dict[str, str] = field(default_factory=dict)

    def accepted(self) -> list[str]:
        return [message for message, fate in self.fates.items() if fate]

    def of(self, message: str, channel: str) -> list[Event]:
        """Return the events of a message in a channel, in order."""
        return [
            event
            for event in self.events
            if getattr(event, "message", None) == message
            and getattr(event, "channel", None) == channel
        ]

    def without(self, *unwanted: Event) -> list[Event]:
        return [event for event in self.events if event not in unwanted]


@st.composite
def histories(draw: st.DrawFn) -> Faultless:
    made = Faultless()
    for topic in TOPICS:
        made.events += [Created(BEFORE, topic, channel) for channel in CHANNELS]
    for number in range(draw(st.integers(1, 6))):
        message = f"m{number}"
        topic = made.topics[message] = draw(st.sampled_from(TOPICS))
        fate = made.fates[message] = draw(st.sampled_from([True, True, None, False]))
        at, delay = draw(st.floats(0, END)), draw(delays)
        made.events.append(Attempted(at, topic, message, at + delay))
        if fate is not None:
            made.events.append(Answered(at + draw(gaps), topic, message, fate))
        for channel in CHANNELS:
            if fate or (fate is None and draw(st.booleans())):
                made.events += draw(deliveries(at + delay, topic, channel, message))
    return made


@st.composite
def deliveries(draw: st.DrawFn, due: float, topic: str, channel: str, message: str) -> list[Event]:
    """Return the events of some delivery attempts; the last one ends with a FIN."""
    events: list[Event] = []
    for _ in range(draw(st.integers(0, 3))):
        taken = due + draw(gaps)
        events.append(Received(taken, topic, channel, message))
        said, delay = taken + draw(gaps), draw(delays)
        what = draw(st.sampled_from(["nothing", "requeued", "finished too late"]))
        due = said
        if what == "requeued":
            due += delay
            events.append(Requeued(said, topic, channel, message, due))
        elif what == "finished too late":
            events.append(Finished(said, topic, channel, message))
            events.append(Refused(said + draw(gaps), topic, channel, message, said))
    taken = due + draw(gaps)
    events.append(Received(taken, topic, channel, message))
    events.append(Finished(taken + draw(gaps), topic, channel, message))
    return events


deaths = st.lists(
    st.builds(
        lambda at, topics, saved: Died(at, at - 0.1, frozenset(topics), saved),
        st.floats(0, 2 * END),
        st.sets(st.sampled_from(TOPICS)),
        st.booleans(),
    ),
    max_size=3,
)


def found(events: list[Event], *, keeps: bool = True) -> dict[tuple[str, str], Findings]:
    return check(events, checkpoint=CHECKPOINT, keeps=keeps)


def broken(events: list[Event], *, keeps: bool = True) -> dict[tuple[str, str, str], list[str]]:
    """Return the messages that violate each guarantee, by topic, channel and the guarantee's
    name."""
    return {
        (*place, name): messages
        for place, findings in found(events, keeps=keeps).items()
        for name, messages in findings.broken().items()
    }


def one_accepted(draw: Callable[..., str], made: Faultless) -> tuple[str, str, str]:
    """Return a topic, one of its channels, and an accepted message of the topic."""
    assume(made.accepted())
    message = draw(st.sampled_from(made.accepted()))
    return made.topics[message], draw(st.sampled_from(CHANNELS)), message


@given(histories(), deaths, st.booleans(), st.randoms())
def test_a_faultless_history(made, deaths, keeps, random) -> None:
    events = [*made.events, *deaths]
    random.shuffle(events)
    assert broken(events, keeps=keeps) == {}
    for findings in found(events, keeps=keeps).values():
        assert findings.again == [] and findings.forgotten == []


@given(histories(), deaths, st.data())
def test_a_receipt_removed_is_a_loss(made, deaths, data) -> None:
    topic, channel, message = one_accepted(data.draw, made)
    events = [*made.without(*made.of(message, channel)), *deaths]
    assert broken(events) == {(topic, channel, "lost"): [message]}


@given(histories(), deaths, st.data())
def test_what_never_came_back_is_a_loss(made, deaths, data) -> None:
    """The last delivery of a requeued or timed-out message is missing."""
    topic, channel, message = one_accepted(data.draw, made)
    events = [*made.without(*made.of(message, channel)[-2:]), *deaths]
    assert broken(events) == {(topic, channel, "lost"): [message]}


@given(histories(), st.data(), st.booleans())
def test_memory_is_lost_with_who_had_it(made, data, saved) -> None:
    topic, channel, message = one_accepted(data.draw, made)
    attempt = next(event for event in made.events if event[1:3] == (topic, message))
    events = made.without(*made.of(message, channel))
    first = Died(attempt.at + 0.1, attempt.at, frozenset([topic]), saved)
    other = Died(attempt.at, attempt.at, frozenset(set(TOPICS) - {topic}))
    events += [other, first, Died(LATER, LATER, frozenset([topic]))]
    lost = {(topic, channel, "lost"): [message]}
    assert broken(events, keeps=False) == (lost if saved else {})
    assert found(events, keeps=False)[topic, channel].forgotten == ([] if saved else [message])
    assert broken(events) == lost


@given(histories(), st.data())
def test_a_death_before_the_publish_forgives_nothing(made, data) -> None:
    topic, channel, message = one_accepted(data.draw, made)
    events = [*made.without(*made.of(message, channel)), Died(BEFORE, BEFORE, frozenset(TOPICS))]
    assert broken(events, keeps=False) == {(topic, channel, "lost"): [message]}


@given(histories(), st.data(), st.floats(0.01, 3 * CHECKPOINT))
def test_what_comes_back_after_its_finish(made, data, age) -> None:
    topic, channel, message = one_accepted(data.draw, made)
    finish = made.of(message, channel)[-1]
    back = Received(finish.at + age + 1, topic, channel, message)
    events = [*made.events, back]
    assert broken(events) == {(topic, channel, "repeated"): [message]}
    events.append(Died(finish.at + age + 0.5, finish.at + age, frozenset([topic])))
    late = found(events)[topic, channel]
    if finish.at + age - finish.at > CHECKPOINT:
        assert (late.duplicated, late.again) == ([message], [])
    else:
        assert (late.duplicated, late.again) == ([], [message])
    assert not late.lost and not late.repeated


@given(histories(), st.data())
def test_a_delivery_before_its_time(made, data) -> None:
    topic, channel, message = one_accepted(data.draw, made)
    attempt = next(event for event in made.events if event[1:3] == (topic, message))
    late = attempt._replace(due=LATER * 10)
    events = [*made.without(attempt), late]
    early = broken(events)
    receipts = [event for event in made.of(message, channel) if isinstance(event, Received)]
    assert early[topic, channel, "early"] == [message] * len(receipts)
    assert {name for _, _, name in early} == {"early"}


@given(histories(), st.data())
def test_a_requeued_message_before_its_time(made, data) -> None:
    topic, channel, message = one_accepted(data.draw, made)
    taken, finish = made.of(message, channel)[-2:]
    sent = taken.at - 0.0005  # the history contains no refusal sent at this time
    events = [*made.events, Requeued(sent, topic, channel, message, LATER * 10)]
    assert broken(events) == {(topic, channel, "early"): [message]}
    assert broken([*events, Died(taken.at, sent, frozenset())]) == {}
    assert broken([*events, Refused(finish.at, topic, channel, message, sent)]) == {}


@given(histories(), st.sampled_from(TOPICS), st.sampled_from(CHANNELS), st.data())
def test_what_was_never_published(made, topic, channel, data) -> None:
    strangers = ["never"] + [message for message, fate in made.fates.items() if fate is False]
    stranger = data.draw(st.sampled_from(strangers))
    topic = made.topics.get(stranger, topic)
    events = [*made.events, Received(LATER, topic, channel, stranger)]
    assert broken(events) == {(topic, channel, "unexpected"): [stranger]}


@given(histories())
def test_what_was_never_answered_may_come(made) -> None:
    for (topic, channel), findings in found(made.events).items():
        assert sorted(findings.recovered) == sorted(
            message
            for message, fate in made.fates.items()
            if fate is None and made.topics[message] == topic and made.of(message, channel)
        )


@given(histories(), st.data())
def test_a_channel_has_no_right_to_what_was_before_it(made, data) -> None:
    topic, channel, message = one_accepted(data.draw, made)
    events = made.without(*made.of(message, channel))
    events.remove(Created(BEFORE, topic, channel))
    events.append(Created(2 * END, topic, channel))
    assert broken(events) == {}


def test_the_story_of_a_message() -> None:
    events: list[Event] = [
        Finished(3.0, "t", "c", "m"),
        Attempted(1.0, "t", "m", 1.5),
        Attempted(1.0, "t", "n"),
        Died(2.0, 1.5, frozenset(["t"])),
    ]
    assert story(events, "t", "m").splitlines() == [
        "  1.000000 Attempted topic=t message=m due=1.5",
        "  2.000000 Died began=1.5 topics=['t'] saved=False",
        "  3.000000 Finished topic=t channel=c message=m",
    ]
