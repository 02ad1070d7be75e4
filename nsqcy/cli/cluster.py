"""The nsqds and nsqlookupds of a command, and requests to all of them.

Errors of single daemons are warnings on stderr; a command fails if a request failed anywhere.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, TypeVar

import click
from urllib3.util import Url

from nsqcy.cluster import discovery, stats, summaries
from nsqcy.cluster.discovery import Producer, daemon_url
from nsqcy.cluster.http_clients import LookupdClient, NsqdHTTPClient
from nsqcy.cluster.parallel import ask_all
from nsqcy.cluster.stats import NodeStats, TopicStats
from nsqcy.cluster.summaries import Summary
from nsqcy.cluster.web_client import PORTS, Terms, WebClient, describe
from nsqcy.errors import TOKEN_WITHHELD, RequestError
from nsqcy.names import host_port
from nsqcy.users import token_file

LOOKUPD = "127.0.0.1:4161"  # queried by default, if it responds
NSQD = "127.0.0.1:4151"  # queried by default otherwise
NOT_FOUND = 404

Value = TypeVar("Value")


def warn(text: str) -> None:
    click.secho(f"warning: {text}", fg="yellow", err=True)


def warn_of(daemon: str, address: str, error: RequestError) -> None:
    warn(f"{daemon} {address}: {describe(error)}")


@dataclass(frozen=True)
class Node:
    """An nsqd. `name` is its HTTP address, without a scheme."""

    producer: Producer
    name: str
    url: Url
    nsqd: NsqdHTTPClient


@dataclass(frozen=True)
class Cluster:
    """The daemons that a command's options specify."""

    lookupds: tuple[str, ...]
    nsqds: tuple[str, ...]
    terms: Terms
    on_error: Callable[[str, str, RequestError], None] = warn_of
    """Called with the kind of daemon, its address and the error."""
    _errors: list[RequestError] = field(default_factory=list, compare=False)

    @cached_property
    def web(self) -> WebClient:
        return WebClient(self.terms)

    @cached_property
    def nodes(self) -> list[Node]:
        """The given nsqds, and those listed by the nsqlookupds. Raises ClickException if there are
        none."""
        if not self.lookupds and not self.nsqds:
            return self._local()
        found = self._given(self.nsqds)
        if self.lookupds:
            found += self._listed(self.lookupds)
        by_name = {each.name: each for each in reversed(found)}
        if not by_name:
            hint = ", and the nsqds' --lookupd-tcp-address" if self.lookupds else ""
            raise click.ClickException(
                f"no nsqd found through {', '.join((*self.lookupds, *self.nsqds))}:"
                f" {self._remedy or f'check the address{hint}'}"
            )
        return [by_name[name] for name in sorted(by_name)]

    def tcp_addresses(self, *, with_tls: bool = False) -> list[str]:
        """Return the addresses for clients that send the token. Warns about nsqds that must not
        receive it. Raises ClickException if none may receive it."""
        found = []
        for node in self.nodes:
            if self.web.may_send_token(node.url._replace(scheme="https") if with_tls else node.url):
                found.append(node.producer.tcp_address)
            else:
                warn(f"nsqd {node.name}: {TOKEN_WITHHELD} --trust-lookupd")
        if not found:
            raise click.ClickException("no nsqd may receive the token")
        return found

    @cached_property
    def registries(self) -> list[LookupdClient]:
        """The nsqlookupds, for requests that change their lists."""
        addresses = self.lookupds
        if not addresses and not self.nsqds and self._local_lookupd:
            addresses = (LOOKUPD,)
        return [LookupdClient.from_url(each, terms=self.terms) for each in addresses]

    def stats(self, topic: str = "", channel: str = "", *, clients: bool = False) -> NodeStats:
        """Return the statistics of the nsqds that respond; warn about the others. Raises
        ClickException if none responds."""
        found = self._query_stats(topic, channel, clients)
        self._report("nsqd", found.errors)
        if not found.answers:
            raise click.ClickException("no nsqd responds")
        return found

    def _query_stats(self, topic: str, channel: str, clients: bool) -> NodeStats:
        by_name = {each.name: each for each in self.nodes}

        def ask(name: str) -> list[TopicStats]:
            node = by_name[name]
            return stats.of_nsqd(
                node.url, node.producer, topic, channel, web=self.web, clients=clients
            )

        outcome = ask_all(list(by_name), ask, self.terms.whole)
        return NodeStats(outcome.values, outcome.errors)

    def summaries(self) -> dict[str, Summary]:
        """Return the summaries of the nsqds that respond, with clients, and with the rows of all
        topics that are busy on some nsqd; warn about the others. Raises ClickException if none
        responds."""
        by_name = {each.name: each for each in self.nodes}

        def ask(name: str) -> Summary:
            node = by_name[name]
            return summaries.of_nsqd(node.url, node.producer, web=self.web, clients=True)

        def ask_rows(name: str, topics: Sequence[str]) -> list[TopicStats]:
            node = by_name[name]
            return summaries.rows_of_nsqd(
                node.url, node.producer, topics, web=self.web, clients=True
            )

        outcome = ask_all(list(by_name), ask, self.terms.whole)
        self._report("nsqd", outcome.errors)
        if not outcome.values:
            raise click.ClickException("no nsqd responds")
        busy = chain.from_iterable(each.busy for each in outcome.values.values())
        found, more = summaries.complete(outcome.values, busy, ask_rows, self.terms.whole)
        self._report("nsqd", more.errors)
        return found

    def topic(self, name: str, *, clients: bool = False) -> TopicStats:
        """Return a topic's statistics. Raises ClickException if no nsqd has it."""
        found = self.stats(name, clients=clients).topics.get(name)
        if found is None:
            raise click.ClickException(f"no nsqd has topic {name}")
        return found

    def lacks(self, topic: str, channel: str) -> bool:
        """Return whether all nsqds respond and none has the channel. Reports no errors."""
        answers = self._query_stats(topic, channel, clients=False)
        found = answers.topics.get(topic)
        return not answers.errors and (found is None or channel not in found.channels)

    def names(self, topic: str | None) -> list[str]:
        """Return the names of all topics, or of a topic's channels."""
        topics = self.stats(topic or "").topics
        if topic is None:
            return sorted(topics)
        return sorted(topics[topic].channels) if topic in topics else []

    def each(
        self, request: Callable[[NsqdHTTPClient], Value], *, needs: str = "it"
    ) -> dict[Node, Value]:
        """Send a request to all nsqds; return the results by node.

        nsqds that do not know the topic or channel are skipped. Raises ClickException if all of
        them are, or if a request failed.

        needs: what an nsqd must have, for the error text
        """
        by_name = {each.name: each for each in self.nodes}
        outcome = ask_all(list(by_name), lambda name: request(by_name[name].nsqd), self.terms.whole)
        failed = {
            name: error for name, error in outcome.errors.items() if error.status != NOT_FOUND
        }
        self._report("nsqd", failed)
        if failed:
            done = f", {len(outcome.values)} succeeded" if outcome.values else ""
            raise click.ClickException(f"{len(failed)} of {len(by_name)} nsqds failed{done}")
        if not outcome.values:
            raise click.ClickException(f"no nsqd has {needs}")
        return {by_name[name]: value for name, value in outcome.values.items()}

    def register(self, request: Callable[[LookupdClient], Any]) -> None:
        """Send a request to all nsqlookupds. Raises ClickException if one fails."""
        by_name = {each.address: each for each in self.registries}
        outcome = ask_all(list(by_name), lambda name: request(by_name[name]), self.terms.whole)
        failed = {
            name: error for name, error in outcome.errors.items() if error.status != NOT_FOUND
        }
        for name, error in failed.items():
            raise click.ClickException(f"nsqlookupd {name}: {describe(error)}")

    def _report(self, daemon: str, errors: Mapping[str, RequestError]) -> None:
        for address, error in errors.items():
            self.on_error(daemon, address, error)
            self._errors.append(error)

    @property
    def had_errors(self) -> bool:
        """Return whether a daemon has failed a request."""
        return bool(self._errors)

    @property
    def _remedy(self) -> str:
        """Return a remedy for the errors so far, if a daemon has answered; otherwise ""."""
        if any(error.status == 401 for error in self._errors):
            start = (
                "the token is not valid: check" if self.terms.token else "a token is required: set"
            )
            return f"{start} {token_file.SETTINGS}"
        if any("certificate not accepted" in str(error) for error in self._errors):
            return "set --tls-root-ca-file to the CA that issued the daemon's certificate"
        return ""

    def _given(self, addresses: Sequence[str]) -> list[Node]:
        urls = {each: daemon_url(each) for each in addresses}
        outcome = ask_all(
            list(urls), lambda each: stats.node_info(urls[each], web=self.web), self.terms.whole
        )
        self._report("nsqd", outcome.errors)
        # Requests go to the given address: the announced one may not be reachable from here.
        return [self._node(producer, urls[each]) for each, producer in outcome.values.items()]

    def _listed(self, addresses: Sequence[str]) -> list[Node]:
        found = discovery.nodes(addresses, web=self.web, with_topics=False)
        self._report("nsqlookupd", found.errors)
        return [self._node(each, each.url) for each in found.producers if each.http_port]

    def _node(self, producer: Producer, url: Url) -> Node:
        name = host_port((url.host or "").strip("[]"), url.port or PORTS[url.scheme or "http"])
        return Node(producer, name, url, NsqdHTTPClient.from_url(url.url, terms=self.terms))

    @cached_property
    def _local_lookupd(self) -> bool:
        errors = discovery.nodes([LOOKUPD], web=self.web, with_topics=False).errors
        self._errors.extend(errors.values())
        return not errors

    def _local(self) -> list[Node]:
        if self._local_lookupd:
            found = self._listed([LOOKUPD])
            if not found:
                raise click.ClickException(
                    f"no nsqd is registered with nsqlookupd {LOOKUPD}: start one with"
                    " --lookupd-tcp-address, or set --nsqd-http-address"
                )
            return found
        found = self._given([NSQD])
        if not found:
            raise click.ClickException(
                f"neither an nsqlookupd at {LOOKUPD} nor an nsqd at {NSQD}: "
                + (self._remedy or "set --lookupd-http-address or --nsqd-http-address")
            )
        return found
