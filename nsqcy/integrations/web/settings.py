"""Addresses and client options of an app, checked before anything connects."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nsqcy.client.options import (
    Addresses,
    ConsumerKeywords,
    ProducerKeywords,
    consumer_options,
    lookupd_addresses,
    nsqd_addresses,
    producer_options,
)
from nsqcy.integrations.client_options import sorted_options


@dataclass(frozen=True, slots=True)
class Settings:
    """The addresses of an app, and its options for consumers and for producers."""

    nsqds: tuple[str, ...]
    lookupds: tuple[str, ...]
    consumer: ConsumerKeywords
    producer: ProducerKeywords


def checked_addresses(
    nsqds: Addresses, lookupds: Addresses, where: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the addresses of nsqds and nsqlookupds. `where` begins error texts.

    Raises ValueError and TypeError.
    """
    for given in (nsqds, lookupds):
        if not isinstance(given, Iterable):
            raise TypeError(f"{where}: {given!r} is neither an address nor a list of addresses")
    try:
        found = tuple(map(str, nsqd_addresses(nsqds))), lookupd_addresses(lookupds)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{where}: {error}") from error
    if not any(found):
        raise ValueError(
            f"{where}: specify the TCP address of an nsqd, or the HTTP address of an nsqlookupd"
        )
    return found


def checked_options(
    options: Mapping[str, Any], where: str
) -> tuple[ConsumerKeywords, ProducerKeywords]:
    """Return the options for consumers and those for producers. `where` begins error texts.

    Raises ValueError and TypeError.
    """
    if not isinstance(options, Mapping):
        raise TypeError(f"{where} must be a dict of options, not {options!r}")
    consumer, producer = sorted_options(options, where=where)
    try:
        consumer_options(consumer)
        producer_options(producer)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{where}: {error}") from error
    return consumer, producer
