"""Alerts for problems that need attention: messages without a consumer, errors, dead letters.

Pure. nsqcy.cluster.problems decides what counts as a problem; this module converts problems to
alerts, and adds those that only the history shows. An alert has a mark and a background, so that it
does not depend on colour alone.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from nsqcy.cluster import problems
from nsqcy.cluster.problems import Problem, Severity
from nsqcy.cluster.rates import Rates
from nsqcy.cluster.stats import ChannelStats, Names, TopicStats
from nsqcy.nsqadmin.history.store import Subject
from nsqcy.nsqadmin.html.formatting import rate

TITLE = "Attention"  # column heading
_ERRORS = {"requeued": "requeued", "timed_out": "timed out"}  # the verb for each metric in an alert
_MIN_RATE = 0.01  # messages per second; lower rates cause no alert
_FAILURES = frozenset({"failing", "timeouts"})  # problems that include the rates of errors
# Alerts for several channels; a single channel's alert has its own figures.
_OF_SEVERAL = {
    "backing-off": "backing off",
    "failing": "failing",
    "falling-behind": "falling behind",
    "keys-blocked": "keys blocked for long",
    "no-consumer": "no consumer",
    "no-consumer-on-nsqd": "no consumer on some nsqds",
    "paused": "paused",
    "slow-consumer": "slow consumers",
    "timeouts": "timing out",
}


class LatestValues(Protocol):
    """Access to the latest values of the history, and to their means over the last minute."""

    def latest(self, subject: Subject, metric: str) -> float | None: ...
    def recent(self, subject: Subject, metric: str) -> float | None: ...


class Sign(NamedTuple):
    """`path`: segments of the path to the page that shows the problem; empty if it is this page."""

    text: str
    help: str
    severity: Severity = Severity.WARNING
    path: tuple[str, ...] = ()

    @property
    def is_error(self) -> bool:
        return self.severity == Severity.ERROR


def weight(signs: Iterable[Sign]) -> int:
    """Return the sort key of lists: one error outweighs any number of warnings."""
    return sum(1000 if each.is_error else 1 for each in signs)


def is_critical(lists: Iterable[Iterable[Sign]]) -> bool:
    """Return whether any of these alerts is an error."""
    return any(each.is_error for signs in lists for each in signs)


def of_topic(stats: TopicStats, rates: LatestValues, origins: Sequence[Names] = ()) -> list[Sign]:
    """Return the alerts for a topic and all its channels. origins: the channels that send their
    dead letters here; if there are any, missing consumers are expected."""
    if stats.publish_rate is None:
        stats = stats._replace(publish_rate=rates.latest(Subject(topic=stats.name), "in"))
    found = list(map(of_problem, problems.of_topic(stats, origins)))
    if stats.figures.paused and not any(each.text == "paused" for each in found):
        help = "No messages are delivered until it is unpaused"
        found.insert(0, Sign("paused", help, Severity.NOTE, ("topics", stats.name)))
    if origins:
        return found
    of_channels = [each for channel in stats.channels.values() for each in _known(channel, rates)]
    found += _by_kind(of_channels, stats)
    if not _FAILURES.intersection(each.kind for each in of_channels):
        found += _errors(Subject(topic=stats.name), rates)
    return found


def of_channel(stats: ChannelStats, rates: LatestValues) -> list[Sign]:
    """Return the alerts for a channel across all nodes."""
    known = _known(stats, rates)
    found = list(map(of_problem, known))
    if _FAILURES.intersection(each.kind for each in known):
        return found
    return found + _errors(Subject(topic=stats.topic, channel=stats.name), rates)


def of_queue(stats: ChannelStats) -> list[Sign]:
    """Return the alerts for a channel on one node or all: consumers may be missing on just this
    node."""
    return list(map(of_problem, _problems(stats)))


# Problems


def _known(stats: ChannelStats, rates: LatestValues) -> list[Problem]:
    """Return a channel's problems; rates that its nsqds do not report come from the history."""
    if stats.rates is None:
        stats = stats._replace(rates=_from_history(stats, rates))
    return _problems(stats)


def _from_history(stats: ChannelStats, rates: LatestValues) -> Rates | None:
    subject = Subject(topic=stats.topic, channel=stats.name)
    received, finished = rates.latest(subject, "in"), rates.latest(subject, "out")
    if received is None or finished is None:
        return None
    requeued, timed_out = (rates.latest(subject, each) or 0.0 for each in _ERRORS)
    return Rates(received, finished, requeued, timed_out, received - finished)


def _problems(stats: ChannelStats) -> list[Problem]:
    """Return a channel's problems, and a note if it is paused and empty."""
    found = list(problems.of_channel(stats))
    if stats.figures.paused and not found:
        place = problems.Place(topic=stats.topic, channel=stats.name)
        help = "no messages are delivered until it is unpaused"
        found.append(Problem(Severity.NOTE, "paused", place, "paused", help, ""))
    return found


# Signs


def of_problem(problem: Problem) -> Sign:
    """Return the alert for a problem of a topic, channel or nsqd."""
    place = problem.place
    path = tuple(filter(None, ("topics" if place.topic else "", place.topic, place.channel)))
    return Sign(problem.label, _help(problem), problem.severity, path)


def _help(problem: Problem) -> str:
    sentences = [problem.text, *filter(None, [problem.advice])]
    return ". ".join(map(_capitalised, sentences))


def _capitalised(sentence: str) -> str:
    """Return a sentence with an initial capital, unless it begins with the name of a daemon."""
    return sentence if sentence.startswith("nsq") else sentence[:1].upper() + sentence[1:]


def _by_kind(found: Iterable[Problem], stats: TopicStats) -> list[Sign]:
    """Return one alert for each kind of problem, with the channel's name or, if there are several,
    their number."""
    in_order = sorted(found, key=lambda each: (-each.severity, each.kind))
    by_kind: dict[str, list[Problem]] = {}
    for each in in_order:
        by_kind.setdefault(each.kind, []).append(each)
    return [_of_channels(each, stats) for each in by_kind.values()]


def _of_channels(found: list[Problem], stats: TopicStats) -> Sign:
    first = found[0]
    if len(found) == 1:
        sign = of_problem(first)
        return sign._replace(text=f"{sign.text}: {first.place.channel}")
    names = ", ".join(each.place.channel for each in found)
    text = _OF_SEVERAL[first.kind]
    help = f"{text[:1].upper()}{text[1:]}: {names}"
    return Sign(f"{text}: {len(found)} channels", help, first.severity, ("topics", stats.name))


def _errors(subject: Subject, rates: LatestValues) -> list[Sign]:
    """Return alerts for errors in the last minute: an alert for rare errors would appear and
    disappear."""
    found = []
    path = tuple(filter(None, ("topics", subject.topic, subject.channel)))
    for metric, verb in _ERRORS.items():
        value = rates.recent(subject, metric) or 0.0
        if value >= _MIN_RATE:
            help = f"Messages {verb} per second, in the last minute"
            found.append(Sign(f"{verb} {rate(value)}", help, path=path))
    return found
