"""The nsqds of a test, and its channels, which are created before anything is published."""

import gevent.event

from loadtest.swarm.options import CONNECT, Options
from nsqcy.client import Consumer, Error
from nsqcy.cluster.discovery import Producer, nodes
from nsqcy.cluster.web_client import Terms, WebClient


class Unreachable(Exception):
    """No nsqd to test was found."""


def tcp_addresses(options: Options) -> list[str]:
    """Raises Unreachable."""
    found = options.nsqds + [each.tcp_address for each in _known(options) if each.tcp_port]
    return list(dict.fromkeys(found))


def http_urls(options: Options) -> list[str]:
    """Raises Unreachable."""
    found = options.https or [each.http_address for each in _known(options) if each.http_port]
    if not found:
        raise Unreachable("HttpUser needs --nsqd-http-address, or lookupds")
    return [each if "://" in each else f"http://{each}" for each in found]


def make_channels(options: Options) -> list[str]:
    """Create all channels on all nsqds by subscribing: a channel receives only messages published
    after its creation. Return the nsqds' addresses. Raises Unreachable."""
    addresses = tcp_addresses(options)
    if not addresses:
        raise Unreachable("no nsqd is registered with the lookupds")
    for address in addresses:
        for topic, channel in options.places:
            _subscribe(options, address, topic, channel)
    return addresses


def _subscribe(options: Options, address: str, topic: str, channel: str) -> None:
    outcome = gevent.event.AsyncResult()
    consumer = Consumer(
        topic,
        channel,
        address,
        runtime="gevent",
        on_ready=lambda _: outcome.set(None),
        on_error=outcome.set,
        max_in_flight=0,
        **options.connection,
    )
    with consumer:
        try:
            error: Error | None = outcome.get(timeout=2 * CONNECT)
        except gevent.Timeout:
            error = Error(f"{address}: no answer to SUB")
    if error is not None:
        raise Unreachable(str(error))


def _known(options: Options) -> list[Producer]:
    """Return the nsqds that nsqlookupds list."""
    if not options.lookupds:
        return []
    web = WebClient(
        Terms(connect_timeout=CONNECT, request_timeout=CONNECT, user_agent="nsqcy-load")
    )
    found = nodes(options.lookupds, web=web, auth_secret=options.auth_secret or None)
    if not found.answers:
        raise Unreachable("; ".join(f"{name}: {error}" for name, error in found.errors.items()))
    return found.producers
