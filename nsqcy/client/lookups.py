"""nsqlookupd queries for a consumer or producer. They block, so they run in a thread.

Finds the nsqds of one or several topics, in one round of queries. The topics of a pattern come from
nsqlookupds' responses to /nodes, which also list the nsqds, or from the nsqds themselves.
"""

from collections.abc import Iterable, Iterator, Mapping

from nsqcy.client.options import Address, Answer, ConnectionOptions, LookupOptions
from nsqcy.client.topics import Topics
from nsqcy.client.user_code import log
from nsqcy.cluster.budget import Bounds
from nsqcy.cluster.discovery import MAX_PRODUCERS, Producer, lookup_all, nodes, nsqd_topics
from nsqcy.cluster.web_client import Terms, WebClient
from nsqcy.errors import RequestError

# For 10,000 nsqds that register 500,000 topics. Each nsqd is an object with two arrays.
BOUNDS = Bounds(16 << 20, objects=4 * MAX_PRODUCERS, values=1_000_000)
# For the /stats of an nsqd with 10,000 topics and their channels.
NSQD_BOUNDS = Bounds(32 << 20, objects=500_000, values=2_000_000)


class Lookups:
    """Queries the nsqlookupds of one consumer or producer: for the nsqds that have its `topics`,
    or, for a producer, for every nsqd.

    `every_nsqd`: list the topics for every nsqd. `nsqds`: the HTTP addresses of nsqds in which a
    pattern finds topics.
    """

    def __init__(
        self,
        addresses: tuple[str, ...],
        topics: Topics | str | None,
        options: LookupOptions,
        connection: ConnectionOptions,
        *,
        every_nsqd: bool = False,
        nsqds: Mapping[Address, str] | None = None,
    ) -> None:
        self._addresses = addresses
        self._topics = Topics(topics) if isinstance(topics, str) else topics
        self._every_nsqd = every_nsqd
        self._nsqds = nsqds or {}
        self._known: dict[str, list[str]] = {}  # topics in the last response of each nsqd
        self._secret = connection.auth_secret if options.lookupd_authorization else None
        self._web = WebClient(
            Terms(
                connect_timeout=options.lookupd_connect_timeout,
                request_timeout=options.lookupd_request_timeout,
                user_agent=connection.user_agent,
                bounds=NSQD_BOUNDS if nsqds else BOUNDS,
            )
        )

    def ask(self) -> Answer:
        """Query all nsqlookupds concurrently; return the nsqds that they list, and their errors."""
        if self._topics is None:
            return self._nodes(("",))
        if self._topics.pattern is not None:
            return self._matching(self._topics)
        if self._every_nsqd:
            return self._nodes(self._topics.keys)
        return self._named(self._topics)

    def _named(self, topics: Topics) -> Answer:
        addresses: list[Address] = []
        failed: dict[str, RequestError] = {}
        found = lookup_all(self._addresses, topics.names, web=self._web, auth_secret=self._secret)
        for name, key in zip(topics.names, topics.keys, strict=True):
            failed.update(found[name].errors)
            for address in found[name].unknown:  # a valid response: there is no such nsqd
                log.warning("lookupd %s has no topic %s", address, name)
            addresses += _addresses(found[name].producers, (key,))
        return addresses, _texts(failed)

    def _nodes(self, keys: Iterable[str]) -> Answer:
        found = nodes(self._addresses, web=self._web, auth_secret=self._secret, with_topics=False)
        return list(_addresses(found.producers, keys)), _texts(found.errors)

    def _matching(self, topics: Topics) -> Answer:
        found = nodes(self._addresses, web=self._web, auth_secret=self._secret)
        listed = [
            (each, [name for name, hidden in each.topics.items() if not hidden])
            for producers in found.answers.values()
            for each in producers
        ]
        everywhere = {name for _, names in listed for name in names if topics.matches(name)}
        addresses: list[Address] = []
        for producer, names in listed:
            keys = everywhere if self._every_nsqd else filter(topics.matches, names)
            addresses += _addresses([producer], keys)
        for address, names in self._of_nsqds():
            addresses += map(address.of_topic, filter(topics.matches, names))
        return addresses, _texts(found.errors)

    def _of_nsqds(self) -> Iterator[tuple[Address, list[str]]]:
        """Yield the nsqds given by address, with their topics. Topics of an nsqd that does not
        respond still count as existing."""
        outcome = nsqd_topics([*self._nsqds.values()], web=self._web, auth_secret=self._secret)
        for http_address, error in outcome.errors.items():
            log.warning("nsqd %s: %s", http_address, error)
        self._known.update(outcome.values)
        for address, http_address in self._nsqds.items():
            yield address, self._known.get(http_address, [])


def _addresses(producers: Iterable[Producer], keys: Iterable[str]) -> Iterator[Address]:
    wanted = tuple(keys)
    for each in producers:
        if each.tcp_port:
            for topic in wanted:
                yield Address(each.broadcast_address, each.tcp_port, each.authenticated, topic)


def _texts(errors: Mapping[str, RequestError]) -> list[str]:
    return [f"{address}: {error}" for address, error in errors.items()]
