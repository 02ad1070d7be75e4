"""Divides the client options that an integration receives into those for consumers and those for
producers."""

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from nsqcy.client.options import ConnectionKeywords, ConsumerKeywords, ProducerKeywords
from nsqcy.options.fields import MAX_NUMBER

QUICK = {  # find new nsqds, and distribute few messages among nsqds, faster than the defaults
    "lookupd_poll_interval": 5.0,
    "low_rdy_idle_timeout": 1.0,
    "rdy_redistribute_interval": 0.5,
}
UNTIL_ANSWERED = 7 * 86400.0  # a closed consumer ends when its last message has been answered


def sorted_options(
    given: Mapping[str, Any], own: Collection[str] = (), where: str = "options"
) -> tuple[ConsumerKeywords, ProducerKeywords]:
    """Return the options for consumers and those for producers; connection options are in both.

    own: options of consumers that the integration sets itself and therefore refuses. where: a name
    for the error text. Raises TypeError for an unknown option, as the client does.
    """
    consumer = _names(ConsumerKeywords) - set(own)
    producer = _names(ProducerKeywords)
    for name in given.keys() - consumer - producer:
        raise TypeError(f"{where} has no option {name!r}{_suggestion(name, consumer | producer)}")
    for_consumer: Any = {name: given[name] for name in given.keys() & consumer}
    for_producer: Any = {name: given[name] for name in given.keys() & producer}
    return for_consumer, for_producer


def demand_seconds(name: str, value: Any) -> None:
    """Raise ValueError unless the value of an option is a number of seconds."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value <= MAX_NUMBER:
        raise ValueError(f"{name} must be a number of seconds above 0, not {value!r}")


def demand_queue_pattern(name: str, value: str | None) -> None:
    """Raise ValueError unless the value of an option is None, or a name that may contain
    `{queue}`."""
    try:
        (value or "").format(queue="name")
    except (LookupError, ValueError, AttributeError):
        raise ValueError(f"{name} may contain only the placeholder {{queue}}: {value!r}") from None


def _names(keywords: Any) -> set[str]:
    return set(keywords.__annotations__) | set(ConnectionKeywords.__annotations__)


def _suggestion(name: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f": did you mean {close[0]!r}?" if close else ""
