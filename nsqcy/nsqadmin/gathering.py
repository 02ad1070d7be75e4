"""What a request of nsqadmin has to know of the cluster, and what it tells it to do.

A `Gathering` is made for one request. It asks each nsqlookupd and each nsqd once, all at the same
time, and remembers who did not answer: what the others said is shown, with a warning. Only where
nobody answered is there an error. It blocks, and is called from threads.

A topic, channel or node is unknown (404) only if all daemons have answered and none knows it; as
long as one is silent that is an error of the cluster (502).

With nsqlookupds an nsqd is asked at the address that it announces; without them where the options
say it is.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar
from urllib.parse import urlencode

from urllib3.util import Url

from nsqcy.cluster import discovery, stats
from nsqcy.cluster.discovery import Producer, daemon_url, lookupd_url
from nsqcy.cluster.parallel import Outcome, ask_all
from nsqcy.cluster.stats import TopicStats
from nsqcy.cluster.web_client import WebClient, unwanted
from nsqcy.errors import HttpError, RequestError
from nsqcy.logging.types import Lines
from nsqcy.nsqadmin.answer_forms import Form, anything
from nsqcy.nsqadmin.saying import (
    CHANNEL_NOT_FOUND,
    NODE_NOT_FOUND,
    SAID_MOST,
    TOPIC_NOT_FOUND,
    Said,
    read,
)
from nsqcy.nsqadmin.versions import latest, version_key

NSQD, NSQLOOKUPD = "nsqd", "nsqlookupd"
ANSWER_MOST = 1 << 20  # bytes of an answer to a POST, of which nothing is read

Key = TypeVar("Key")
Value = TypeVar("Value")
Told = Outcome[str, None]  # by addresses


class Sources(Protocol):
    """The options that say whom to ask."""

    @property
    def lookupd_http_address(self) -> Sequence[str]: ...
    @property
    def nsqd_http_address(self) -> Sequence[str]: ...


@dataclass(frozen=True)
class Node:
    """An nsqd. `at` is its address among the options, if it is found by them."""

    producer: Producer
    at: str = ""
    remote_addresses: tuple[str, ...] | None = None  # by lookupd; None where there is none
    out_of_date: bool = False

    @property
    def name(self) -> str:
        return self.producer.http_address

    @property
    def url(self) -> Url:
        """Where it is asked; RequestError if it has no HTTP."""
        return daemon_url(self.at) if self.at else self.producer.url


@dataclass(frozen=True)
class Rows:
    """What nsqds count, a row for each topic of each of them."""

    answers: Sequence[tuple[Node, Sequence[TopicStats]]]

    @property
    def nodes(self) -> dict[str, Node]:
        return {node.name: node for node, _ in self.answers}

    @property
    def topics(self) -> list[TopicStats]:
        return [row for _, rows in self.answers for row in rows]


class Gathering:
    """`warnings` are the texts of what went wrong, a step at a time."""

    def __init__(self, sources: Sources, web: WebClient, log: Lines) -> None:
        self.warnings: list[str] = []
        self._silent: list[str] = []  # who did not answer, and why
        self.lookupds = tuple(dict.fromkeys(sources.lookupd_http_address))
        self._nsqds = tuple(dict.fromkeys(sources.nsqd_http_address))
        self._web = web
        self._log = log

    @property
    def by_lookupds(self) -> bool:
        """Whether nsqlookupds are asked for nsqds."""
        return bool(self.lookupds)

    def warning(self, between: str) -> str:
        """All of them in one text; empty if nothing went wrong."""
        texts = dict.fromkeys(self.warnings)
        return f"WARNING: {between.join(texts)}" if texts else ""

    # What there is

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        if self.by_lookupds:
            outcome = discovery.topics(self.lookupds, web=self._web)
            return sorted({name for names in self._heard(outcome, NSQLOOKUPD) for name in names})
        return sorted({row.name for row in self._rows_of_nsqds().topics})

    def inactive_topics(self) -> dict[str, list[str]]:
        """The topics that no nsqd has, and their channels, as nsqlookupds know them."""
        if not self.by_lookupds:
            return {}
        outcome = discovery.topics(self.lookupds, web=self._web)
        names = {name for names in self._heard(outcome, NSQLOOKUPD) for name in names}
        active = {
            topic
            for node in self.nodes()
            for topic, tombstoned in node.producer.topics.items()
            if not tombstoned
        }
        found: dict[str, set[str]] = {name: set() for name in sorted(names - active)}
        known = discovery.channels(list(outcome.values), found, web=self._web)
        for (_, topic), channels in known.values.items():
            found[topic].update(channels)
        return {topic: sorted(channels) for topic, channels in found.items()}

    def nodes(self) -> list[Node]:
        """All nsqds: by hostname if nsqlookupds know them, else in the order of the options."""
        if not self.by_lookupds:
            return [_with_topics(node, rows) for node, rows in self._rows_of_nsqds().answers]
        found = discovery.nodes(self.lookupds, web=self._web)
        self._heard(_outcome(found), NSQLOOKUPD)
        return _known_nodes(found.answers)

    def known(self) -> list[Node]:
        """The same without their topics, unless nsqlookupds know them: nobody has to count."""
        return self.nodes() if self.by_lookupds else self._nsqds_there_are()

    def find(self, name: str) -> Node:
        """404 if it is not known: this is no way to have requests sent to anybody."""
        found = next((node for node in self.known() if node.name == name), None)
        if found is None:
            raise self.not_found(NODE_NOT_FOUND)
        return found

    def producers(self, topic: str) -> list[Node]:
        """The nsqds that have a topic. There may be none, unless no nsqlookupd knows the topic."""
        if not self.by_lookupds:
            answers = self._rows_of_nsqds(topic).answers
            return [node for node, rows in answers if any(row.name == topic for row in rows)]
        found = discovery.lookup(self.lookupds, topic, web=self._web)
        if not found.answers and not found.errors:
            raise self.not_found(TOPIC_NOT_FOUND)
        answered = self._heard(_outcome(found), NSQLOOKUPD, found.unknown)
        return [Node(each) for each in _by_http_address(answered)]

    def nodes_with(self, topic: str, node: str = "") -> list[Node]:
        """The same, or one of them; 404 if there are none."""
        nodes = self.producers(topic)
        if not nodes:
            raise self.not_found(TOPIC_NOT_FOUND)
        if node:
            nodes = [each for each in nodes if each.name == node]
            if not nodes:
                raise self.not_found(NODE_NOT_FOUND)
        return nodes

    # What it counts

    def topic(self, name: str, channel: str = "", *, clients: bool = False) -> Rows:
        """The rows of one topic, with one channel or all of them; 404 if there are none."""

        def is_wanted(row: TopicStats) -> bool:
            return row.name == name and (not channel or channel in row.channels)

        if not self.by_lookupds:
            rows = self._rows_of_nsqds(name, channel, clients)
        else:
            rows = self._rows(self.nodes_with(name), name, channel, clients)
        having = [(node, [*filter(is_wanted, found)]) for node, found in rows.answers]
        if any(found for _, found in having):
            return Rows(having)
        if channel:
            self.topic(name)  # which may be what is unknown: nsqds leave it out either way
            raise self.not_found(CHANNEL_NOT_FOUND)
        raise self.not_found(TOPIC_NOT_FOUND)

    def streams(self) -> tuple[list[str], Rows]:
        """The names of all topics, and the rows of those that nsqds have."""
        if not self.by_lookupds:
            rows = self._rows_of_nsqds()
            return sorted({row.name for row in rows.topics}), rows
        names, nodes = self.topics(), self.nodes()
        return names, self._rows(nodes) if nodes else Rows(())

    def everything(self) -> Rows:
        """The rows of all topics, without clients."""
        if not self.by_lookupds:
            return self._rows_of_nsqds()
        return self._rows(self.nodes())

    def node(self, name: str) -> Rows:
        """The rows of one node, with clients; 404 if there is no such node."""
        return self._rows([self.find(name)], clients=True)

    def _rows(
        self, nodes: Iterable[Node], topic: str = "", channel: str = "", clients: bool = False
    ) -> Rows:
        """What these nsqds count, each asked where it is."""
        by_name = {node.name: node for node in nodes}

        def ask(name: str) -> list[TopicStats]:
            node = by_name[name]
            return stats.of_nsqd(
                node.url, node.producer, topic, channel, web=self._web, clients=clients
            )

        outcome = ask_all(list(by_name), ask, self._web.terms.whole)
        self._heard(outcome, NSQD)
        return Rows([(by_name[name], rows) for name, rows in outcome.values.items()])

    def _rows_of_nsqds(self, topic: str = "", channel: str = "", clients: bool = False) -> Rows:
        """The same of the nsqds of the options."""
        outcome = stats.nsqds(self._nsqds, topic, channel, web=self._web, clients=clients)
        self._heard(outcome, NSQD)
        answers = outcome.values.items()
        return Rows([(Node(producer, at), rows) for at, (producer, rows) in answers])

    def _nsqds_there_are(self) -> list[Node]:
        urls = {address: daemon_url(address) for address in self._nsqds}

        def ask(address: str) -> Producer:
            return stats.node_info(urls[address], web=self._web)

        outcome = ask_all(self._nsqds, ask, self._web.terms.whole)
        self._heard(outcome, NSQD)
        return [Node(producer, at) for at, producer in outcome.values.items()]

    # What it is told

    def tell_lookupds(self, path: str, **query: str) -> Told:
        """POST to every nsqlookupd; one that fails is a warning."""
        urls = {each: daemon_url(lookupd_url(each, path)) for each in self.lookupds}
        return self._post(urls, query, path)

    def tell(self, nodes: Iterable[Node], path: str, **query: str) -> Told:
        """POST to these nsqds; one that fails is a warning."""
        return self._post({node.at or node.name: node for node in nodes}, query, path)

    def _post(self, places: Mapping[str, Node | Url], query: Mapping[str, str], path: str) -> Told:
        def ask(name: str) -> None:
            place = places[name]
            url = place.url._replace(path=f"/{path}") if isinstance(place, Node) else place
            url = url._replace(query=urlencode(query))
            answer = self._web.ask(url, "POST", body=b"", most=ANSWER_MOST)
            if answer.status != 200:
                raise unwanted(answer)

        outcome = ask_all(list(places), ask, self._web.terms.whole)
        if outcome.errors:
            self.warn(_texts(outcome.errors))
        return outcome

    def ask_each(
        self,
        nodes: Iterable[Node],
        path: str,
        query: Mapping[str, str],
        method: str = "GET",
        body: bytes | None = None,
        form: Form = anything,
    ) -> list[Said]:
        """What each of these nsqds says, in that form; one that does not answer at all is a
        warning."""
        by_name = {node.name: node for node in nodes}

        def ask(name: str) -> Said:
            url = by_name[name].url._replace(path=f"/{path}", query=urlencode(query))
            return read(name, self._web.ask(url, method, body=body, most=SAID_MOST), form)

        outcome = ask_all(list(by_name), ask, self._web.terms.whole)
        self._note(outcome.errors)
        return list(outcome.values.values())

    # What went wrong

    def not_found(self, code: str) -> HttpError:
        """What nobody knows who has answered: a 404, unless some did not answer."""
        if not self._silent:
            return HttpError(404, code)
        text = f"not found on those that answered, and some did not: {self._silence}"
        return self._failure(text)

    def nobody_answers(self) -> HttpError:
        """What there is to say if no nsqd has answered."""
        return self._none_of(NSQD, self._silence)

    @property
    def _silence(self) -> str:
        return "\n".join(dict.fromkeys(self._silent))

    def _heard(
        self,
        outcome: Outcome[Key, Value],
        whom: str,
        unknown: Container[Key] = (),
    ) -> list[Value]:
        """The answers, if there are any; what failed is a warning. `unknown` have answered, though
        they count as failed."""
        if not outcome.values:
            raise self._none_of(whom, _texts(outcome.errors))
        self._note(outcome.errors, unknown)
        return list(outcome.values.values())

    def _note(self, errors: Mapping[Key, RequestError], answered: Container[Key] = ()) -> None:
        if errors:
            self.warn(_texts(errors))
        silent = {key: error for key, error in errors.items() if key not in answered}
        if silent:
            self._silent.append(_texts(silent))

    def warn(self, text: str) -> None:
        self._log.warn(text, event="upstream_failed")
        self.warnings.append(text)

    def _none_of(self, whom: str, text: str) -> HttpError:
        return self._failure(f"failed to query any {whom}: {text or f'no {whom} is known'}")

    def _failure(self, text: str) -> HttpError:
        self._log.error(text, event="request_failed")
        return HttpError(502, f"UPSTREAM_ERROR: {text}")


def _texts(errors: Mapping[Key, RequestError]) -> str:
    return "\n".join(f"{address}: {error}" for address, error in errors.items())


def _outcome(found: discovery.Found) -> Outcome[str, Sequence[Producer]]:
    """What lookupds said; one that does not know the topic has failed, as NSQ has it."""
    outcome: Outcome[str, Sequence[Producer]] = Outcome()
    outcome.values.update(found.answers)
    outcome.errors.update(found.unknown)
    outcome.errors.update(found.errors)
    return outcome


def _by_http_address(answers: Iterable[Sequence[Producer]]) -> list[Producer]:
    found: dict[str, Producer] = {}
    for producers in answers:
        for each in producers:
            found.setdefault(each.http_address, each)
    return list(found.values())


def _known_nodes(answers: Mapping[str, Sequence[Producer]]) -> list[Node]:
    """Each nsqd once, with all lookupds that have it."""
    first = discovery.union(answers.values())
    newest = latest(each.version for each in first)
    nodes = []
    for producer in sorted(first, key=lambda each: each.hostname):
        sightings = tuple(
            f"{lookupd}/{each.remote_address or 'N/A'}"
            for lookupd, producers in answers.items()
            for each in producers
            if each.address == producer.address
        )
        is_old = version_key(producer.version) < newest
        nodes.append(Node(producer, remote_addresses=sightings, out_of_date=is_old))
    return nodes


def _with_topics(node: Node, rows: Iterable[TopicStats]) -> Node:
    topics = {row.name: False for row in rows}
    return replace(node, producer=replace(node.producer, topics=topics))
