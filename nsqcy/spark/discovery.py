"""A query's nsqds: those in its options, and those known to its nsqlookupds."""

import http.client
import logging
import re
import time
import urllib.parse

from nsqcy.spark.errors import Unreachable
from nsqcy.spark.http import BadStatus, addresses, get
from nsqcy.spark.log_client import Access, reason
from nsqcy.spark.options import Options, WriteOptions

LOG = logging.getLogger("nsqcy.spark")
FAILURES = (OSError, http.client.HTTPException, ValueError, KeyError, TypeError)
"""An nsqlookupd is down, or its response is not a valid nsqlookupd response."""


class Discovery:
    """Queries nsqlookupds, and keeps their last response if none responds.

    An nsqd that they no longer list is also kept. It may be down, and a query must then wait for it
    rather than treat its rows as lost.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._nsqds: dict[str, set[str]] = {}  # nsqds by topic, from nsqlookupds
        self._asked_at: float | None = None

    def topics(self) -> list[str]:
        if not self._options.pattern:
            return list(self._options.topics)
        return sorted(self._nsqds)

    def nsqds(self, topic: str) -> list[str]:
        return sorted({*self._options.nsqds, *self._nsqds.get(topic, ())})

    def forget(self, topic: str, address: str) -> None:
        """Record that an nsqd has moved to a different address."""
        self._nsqds.get(topic, set()).discard(address)

    def refresh(self, *, tries: int = 1) -> None:
        """Query again if due. In the first query, at least one nsqlookupd must respond."""
        now = time.monotonic()
        first = self._asked_at is None
        if not self._options.lookupds or (
            self._asked_at is not None and now - self._asked_at < self._options.discovery_interval
        ):
            return
        for attempt in range(tries):
            if attempt:
                time.sleep(self._options.retry_interval)
            failures = self._ask()
            if len(failures) < len(self._options.lookupds):
                self._asked_at = now
                return
        text = nobody(self._options.lookupds, failures)
        if first:
            raise Unreachable(text)
        LOG.warning("nsq: %s; continuing with the nsqds known so far", text)
        self._asked_at = now

    def _ask(self) -> list[str]:
        """Return the error for each nsqlookupd that did not respond."""
        failures = []
        for address in self._options.lookupds:
            try:
                for topic in self._topics_at(address):
                    self._nsqds.setdefault(topic, set()).update(self._nsqds_at(address, topic))
            except FAILURES as error:
                failures.append(f"{address}: {reason(error)}")
        return failures

    def _topics_at(self, address: str) -> list[str]:
        if not self._options.pattern:
            return list(self._options.topics)
        found = get(address, "/topics", limit(self._options.access)).get("topics") or []
        if not (isinstance(found, list) and all(isinstance(name, str) for name in found)):
            raise ValueError("the response is not a list of topics")
        return [
            name
            for name in found
            if re.fullmatch(self._options.pattern, name) and not name.endswith("#ephemeral")
        ]

    def _nsqds_at(self, address: str, topic: str) -> set[str]:
        query = urllib.parse.urlencode({"topic": topic})
        try:
            found = get(address, f"/lookup?{query}", limit(self._options.access))
        except BadStatus as error:
            if error.status != 404 or error.is_stranger:
                raise
            return set()  # the nsqlookupd does not have this topic
        return set(addresses(found, "tcp_port", proved=needs_proof(self._options.access)))


def all_nsqds(options: WriteOptions) -> list[str]:
    """Return the destinations: every nsqd in an option or in an nsqlookupd's list."""
    found = set(options.nsqds)
    if not options.lookupds:
        return sorted(found)
    failures: list[str] = []
    for attempt in range(options.retries + 1):
        if attempt:
            time.sleep(options.retry_interval)
        failures = []
        for address in options.lookupds:
            try:
                nodes = get(address, "/nodes", limit(options.access))
                found.update(addresses(nodes, "tcp_port", proved=needs_proof(options.access)))
            except FAILURES as error:
                failures.append(f"{address}: {reason(error)}")
        if len(failures) < len(options.lookupds):
            break
    if not found or len(failures) == len(options.lookupds):
        raise Unreachable(nobody(options.lookupds, failures))
    return sorted(found)


def nobody(lookupds: tuple[str, ...], failures: list[str]) -> str:
    if len(failures) < len(lookupds):
        return f"no nsqd is known to nsqlookupd {','.join(lookupds)}"
    return f"no nsqlookupd answered: {'; '.join(failures)}"


def limit(access: Access) -> float:
    """Return the seconds for a request to an nsqlookupd."""
    return max(access.connect_timeout, 1.0)


def needs_proof(access: Access) -> bool:
    """Return whether nsqds that nsqlookupds list must have authenticated: they receive the secret,
    and no certificate from our own CA authenticates them."""
    has_own_ca = access.tls and access.tls_verify and bool(access.tls_ca_file)
    return bool(access.auth_secret) and not (access.trust_lookupd or has_own_ca)
