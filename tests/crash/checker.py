"""Find the guarantees that a history violates: a pure function of its events, like Jepsen's
total-queue.

The history must be complete: publishing has ended, and every channel was drained.
"""

import bisect
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

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
)

# nsqd measures due times by the wall clock, whose rate differs slightly from that of the test's
# clock.
CLOCKS_APART = 0.01


@dataclass
class Findings:
    """Outcomes of the messages of one channel. The first group lists violated guarantees."""

    lost: list[str] = field(default_factory=list)  # messages acknowledged, but never finished
    unexpected: list[str] = field(default_factory=list)  # received, but never published, or refused
    early: list[str] = field(default_factory=list)  # received before its due time
    repeated: list[str] = field(default_factory=list)  # received after its FIN without a death

    duplicated: list[str] = field(default_factory=list)  # after a death long after the FIN
    again: list[str] = field(default_factory=list)  # after a death within a checkpoint of the FIN
    forgotten: list[str] = field(default_factory=list)  # lost with the memory of a dead process
    recovered: list[str] = field(default_factory=list)  # received after an unanswered publish
    received: int = 0

    def broken(self) -> dict[str, list[str]]:
        """Return the messages that violate each guarantee; empty if there are none."""
        found = {
            "lost": self.lost,
            "unexpected": self.unexpected,
            "early": self.early,
            "repeated": self.repeated,
            "duplicated": self.duplicated,
        }
        return {name: messages for name, messages in found.items() if messages}


def check(
    events: Iterable[Event], *, checkpoint: float, keeps: bool = True
) -> dict[tuple[str, str], Findings]:
    """Return the findings for each channel that was created.

    checkpoint: seconds after which a FIN is on disk
    keeps: whether a message is on disk when its publish is answered; otherwise it is on disk once
        its topic has been saved for the first time
    """
    ordered = sorted(events, key=lambda event: event.at)
    published = _Published(ordered, keeps)
    refused = {
        (event.topic, event.channel, event.message, event.sent)
        for event in ordered
        if isinstance(event, Refused)
    }
    # A refused FIN or REQ has no effect.
    by_channel: dict[tuple[str, str], list[Received | Finished | Requeued]] = defaultdict(list)
    for event in ordered:
        if isinstance(event, Received) or (
            isinstance(event, Finished | Requeued)
            and (event.topic, event.channel, event.message, event.at) not in refused
        ):
            by_channel[event.topic, event.channel].append(event)
    return {
        (event.topic, event.channel): _channel(
            event, by_channel[event.topic, event.channel], published, checkpoint
        )
        for event in ordered
        if isinstance(event, Created)
    }


class _Published:
    """All publishes with their answers, and all deaths."""

    def __init__(self, ordered: list[Event], keeps: bool) -> None:
        self._keeps = keeps
        self.deaths = [event for event in ordered if isinstance(event, Died)]
        self._ends = [death.at for death in self.deaths]
        self.attempts = {
            (event.topic, event.message): event for event in ordered if isinstance(event, Attempted)
        }
        self.answers = {
            (event.topic, event.message): event.accepted
            for event in ordered
            if isinstance(event, Answered)
        }

    def death_between(self, begin: float, end: float) -> Died | None:
        """Return the first death that may have undone a command. The command was sent at `begin`,
        and its effect was visible by `end`."""
        at = bisect.bisect_left(self._ends, begin)
        if at < len(self.deaths) and self.deaths[at].began <= end:
            return self.deaths[at]
        return None

    def may_be_forgotten(self, attempt: Attempted) -> bool:
        """Return whether the message's topic died before it was saved."""
        if self._keeps:
            return False
        at = bisect.bisect_left(self._ends, attempt.at)
        deaths = (death for death in self.deaths[at:] if attempt.topic in death.topics)
        first = next(deaths, None)
        return first is not None and not first.saved


def _channel(
    created: Created,
    events: list[Received | Finished | Requeued],
    published: _Published,
    checkpoint: float,
) -> Findings:
    findings = Findings()
    ordered: dict[str, Finished | Requeued] = {}  # the last FIN or REQ of each message
    finished: set[str] = set()
    received: set[str] = set()
    for event in events:
        message = event.message
        if isinstance(event, Received):
            findings.received += 1
            received.add(message)
            _receipt(findings, event, ordered.get(message), published, checkpoint)
        else:
            ordered[message] = event
            if isinstance(event, Finished):
                finished.add(message)
    for (topic, message), attempt in published.attempts.items():
        if topic != created.topic:
            continue
        accepted = published.answers.get((topic, message))
        if accepted is None and message in received:
            findings.recovered.append(message)
        elif accepted and message not in finished and attempt.at >= created.at:
            forgotten = published.may_be_forgotten(attempt)
            (findings.forgotten if forgotten else findings.lost).append(message)
    return findings


def _receipt(
    findings: Findings,
    event: Received,
    before: Finished | Requeued | None,
    published: _Published,
    checkpoint: float,
) -> None:
    attempt = published.attempts.get((event.topic, event.message))
    if attempt is None or published.answers.get((event.topic, event.message)) is False:
        findings.unexpected.append(event.message)
        return
    if _is_early(event, attempt):
        findings.early.append(event.message)
    if before is None:
        return
    death = published.death_between(before.at, event.at)
    if isinstance(before, Requeued):
        if death is None and _is_early(event, before):
            findings.early.append(event.message)
    elif death is None:
        findings.repeated.append(event.message)
    elif death.began - before.at > checkpoint:
        findings.duplicated.append(event.message)
    else:
        findings.again.append(event.message)


def _is_early(event: Received, order: Attempted | Requeued) -> bool:
    return event.at < order.due - CLOCKS_APART
