"""nsqlookupd queries for a consumer or producer. They block, so they run in a thread."""

from nsqcy.client.options import Address, Answer, ConnectionOptions, LookupOptions
from nsqcy.client.outside import log
from nsqcy.cluster.budget import Bounds
from nsqcy.cluster.discovery import MAX_PRODUCERS, Found, lookup, nodes
from nsqcy.cluster.web_client import Terms, WebClient

# For 10,000 nsqds that register 500,000 topics. Each nsqd is an object with two arrays.
BOUNDS = Bounds(16 << 20, objects=4 * MAX_PRODUCERS, values=1_000_000)


class Lookups:
    """The nsqlookupds of one consumer or producer: for the nsqds that have a `topic`, or, without
    one, for every nsqd."""

    def __init__(
        self,
        addresses: tuple[str, ...],
        topic: str | None,
        options: LookupOptions,
        connection: ConnectionOptions,
    ) -> None:
        self._addresses = addresses
        self._topic = topic
        self._secret = connection.auth_secret if options.lookupd_authorization else None
        self._web = WebClient(
            Terms(
                connect_timeout=options.lookupd_connect_timeout,
                request_timeout=options.lookupd_request_timeout,
                user_agent=connection.user_agent,
                bounds=BOUNDS,
            )
        )

    def ask(self) -> Answer:
        """Query all nsqlookupds concurrently; return the nsqds that they list, and their errors."""
        found = self._found()
        errors = [f"{address}: {error}" for address, error in found.errors.items()]
        for address in found.unknown:  # a valid response: there is no such nsqd
            log.warning("lookupd %s has no topic %s", address, self._topic)
        addresses = [
            Address(each.broadcast_address, each.tcp_port, each.authenticated)
            for each in found.producers
            if each.tcp_port
        ]
        return addresses, errors

    def _found(self) -> Found:
        if self._topic is None:
            return nodes(
                self._addresses, web=self._web, auth_secret=self._secret, with_topics=False
            )
        return lookup(self._addresses, self._topic, web=self._web, auth_secret=self._secret)
