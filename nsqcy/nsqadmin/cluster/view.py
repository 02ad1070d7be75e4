"""View of the cluster for one request: sends requests to its daemons and collects the responses.

A `ClusterView` serves one request. It queries each nsqlookupd and each nsqd once, all in parallel.
If some do not answer, the page shows the other daemons' data with a warning; if none answers, this
is an error. Calls block; handlers make them in threads.

A topic, channel or node is unknown (404) only if all daemons have answered and none knows it. If
any does not answer, this is a cluster error (502).

If there are nsqlookupds, an nsqd is queried at its announced address; otherwise, at the address in
the options.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar
from urllib.parse import urlencode

from urllib3.util import Url

from nsqcy.cluster import connections, discovery, stats, summaries
from nsqcy.cluster.answer_forms import KEYS, PEEKED, POLICY, Form, anything
from nsqcy.cluster.connections import Connection
from nsqcy.cluster.discovery import Producer, daemon_url, lookupd_url
from nsqcy.cluster.parallel import Outcome, ask_all
from nsqcy.cluster.stats import TopicStats
from nsqcy.cluster.summaries import BUSIEST, Origins, Summary, Totals
from nsqcy.cluster.web_client import WebClient
from nsqcy.errors import HttpError, RequestError
from nsqcy.logging import events
from nsqcy.logging.types import Lines
from nsqcy.nsqadmin.cluster.answers import (
    CHANNEL_NOT_FOUND,
    COPIES,
    DRAIN,
    LOG,
    MAX_ANSWER,
    NODE,
    NODE_NOT_FOUND,
    TOPIC_NOT_FOUND,
    NodeAnswer,
    read_answer,
)
from nsqcy.nsqadmin.cluster.nodes import Node, NodeStats, by_http_address, known_nodes, with_topics
from nsqcy.nsqadmin.cluster.outages import Outages

NSQD, NSQLOOKUPD = "nsqd", "nsqlookupd"
DRAIN_PATH = "config/drain"
MAX_POST_ANSWER = 1 << 20  # maximum bytes of a response to a POST; the content is ignored

Key = TypeVar("Key")
Value = TypeVar("Value")
Posted = Outcome[str, None]  # by addresses


class Sources(Protocol):
    """The options with the addresses of the daemons to query."""

    @property
    def lookupd_http_address(self) -> Sequence[str]: ...
    @property
    def nsqd_http_address(self) -> Sequence[str]: ...


class ClusterView:
    """The cluster as seen by one request. warnings: error texts, one per failed step."""

    def __init__(self, sources: Sources, web: WebClient, log: Lines, outages: Outages) -> None:
        self.warnings: list[str] = []
        self.failed_lookupds: dict[str, str] = {}  # reason by address, among those queried
        self._producers: dict[str, list[Node]] = {}  # by topic
        self._silent: list[str] = []  # daemons that did not answer, with the reason
        self.lookupds = tuple(dict.fromkeys(sources.lookupd_http_address))
        self._nsqds = tuple(dict.fromkeys(sources.nsqd_http_address))
        self._web = web
        self._log = log
        self._outages = outages

    @property
    def by_lookupds(self) -> bool:
        """Whether nsqds are discovered through nsqlookupds."""
        return bool(self.lookupds)

    def warning(self, between: str) -> str:
        """Return all warnings as one string; empty if there are none."""
        texts = dict.fromkeys(self.warnings)
        return f"WARNING: {between.join(texts)}" if texts else ""

    # Topics and nodes

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        if self.by_lookupds:
            outcome = discovery.topics(self.lookupds, web=self._web)
            return sorted({name for names in self._collect(outcome, NSQLOOKUPD) for name in names})
        return sorted(_names(each for _, each in self._summaries_of_nsqds(0, names=True)))

    def _listed_topics(self, nodes: Iterable[Node]) -> list[str]:
        """Return the names of all topics, sorted: those of these nsqds, and those that only
        nsqlookupds know."""
        names, _ = self._abandoned_topics()
        return sorted(names.union(*(node.producer.topics for node in nodes)))

    def _abandoned_topics(self) -> tuple[set[str], Outcome[str, list[str]]]:
        """Return the topics that nsqlookupds list although no active nsqd has them, and the
        responses. NSQ's nsqlookupd lists all topics."""
        outcome = discovery.topics(self.lookupds, web=self._web, abandoned=True)
        return set().union(*self._collect(outcome, NSQLOOKUPD)), outcome

    def inactive_topics(self) -> dict[str, list[str]]:
        """Return the topics that nsqlookupds list but no nsqd has, with their channels."""
        if not self.by_lookupds:
            return {}
        names, outcome = self._abandoned_topics()
        self.failed_lookupds = {address: str(error) for address, error in outcome.errors.items()}
        active: set[str] = set()
        for node in self.nodes():
            for topic, tombstoned in node.producer.topics.items():
                (names if tombstoned else active).add(topic)
        found: dict[str, set[str]] = {name: set() for name in sorted(names - active)}
        known = discovery.channels(list(outcome.values), found, web=self._web)
        for (_, topic), channels in known.values.items():
            found[topic].update(channels)
        return {topic: sorted(channels) for topic, channels in found.items()}

    def nodes(self) -> list[Node]:
        """Return all nsqds: sorted by hostname if there are nsqlookupds, otherwise in the order of
        the options."""
        if not self.by_lookupds:
            return [
                with_topics(node, _names([each]))
                for node, each in self._summaries_of_nsqds(0, names=True)
            ]
        return self._listed()

    def known(self) -> list[Node]:
        """Return all nsqds. Cheaper than nodes(), because the topics are missing."""
        return self._listed(with_topics=False) if self.by_lookupds else self._configured_nodes()

    def _listed(self, *, with_topics: bool = True) -> list[Node]:
        """Return the nsqds that the nsqlookupds list."""
        found = discovery.nodes(self.lookupds, web=self._web, with_topics=with_topics)
        self._collect(_outcome(found), NSQLOOKUPD)
        return known_nodes(found.answers)

    def find(self, name: str) -> Node:
        """Return a node. Raises HttpError (404) if it is unknown, so that users cannot direct
        requests to other hosts."""
        found = next((node for node in self.known() if node.name == name), None)
        if found is None:
            raise self.not_found(NODE_NOT_FOUND)
        return found

    def producers(self, topic: str) -> list[Node]:
        """Return the nsqds that have a topic, possibly none. Queries them once per request. Raises
        HttpError if no nsqlookupd lists the topic."""
        if topic not in self._producers:
            self._producers[topic] = self._query_producers(topic)
        return self._producers[topic]

    def _query_producers(self, topic: str) -> list[Node]:
        if not self.by_lookupds:
            answers = self._rows_of_nsqds(topic).answers
            return [node for node, rows in answers if any(row.name == topic for row in rows)]
        found = discovery.lookup(self.lookupds, topic, web=self._web)
        if not found.answers and not found.errors:
            raise self.not_found(TOPIC_NOT_FOUND)
        answered = self._collect(_outcome(found), NSQLOOKUPD, found.unknown)
        return [Node(each) for each in by_http_address(answered)]

    def nodes_with(self, topic: str, node: str = "") -> list[Node]:
        """Return the nsqds that have a topic, or one of them. Raises HttpError (404) if there are
        none."""
        nodes = self.producers(topic)
        if not nodes:
            raise self.not_found(TOPIC_NOT_FOUND)
        if node:
            nodes = [each for each in nodes if each.name == node]
            if not nodes:
                raise self.not_found(NODE_NOT_FOUND)
        return nodes

    # Statistics

    def topic(self, name: str, channel: str = "", *, clients: bool = False) -> NodeStats:
        """Return the rows for one topic, with one channel or all. Raises HttpError (404) if there
        are none."""

        def is_wanted(row: TopicStats) -> bool:
            return row.name == name and (not channel or channel in row.channels)

        if not self.by_lookupds:
            rows = self._rows_of_nsqds(name, channel, clients)
        else:
            rows = self._rows(self.nodes_with(name), name, channel, clients)
        having = [(node, [*filter(is_wanted, found)]) for node, found in rows.answers]
        if any(found for _, found in having):
            return NodeStats(having)
        if channel:
            # raises an error if the topic is unknown too: nsqds omit it even if only the channel is
            self.topic(name)
            raise self.not_found(CHANNEL_NOT_FOUND)
        raise self.not_found(TOPIC_NOT_FOUND)

    def busiest(self, *, names: bool = False) -> "Busiest":
        """Return the busiest topics, and the nsqds that do not answer. names: whether to list the
        names of all topics. If there are nsqlookupds, it is no error if no nsqd answers."""
        if not self.by_lookupds:
            found = self._summaries_of_nsqds(names=names)
            answering = {node.at for node, _ in found}
            silent = [at for at in self._nsqds if at not in answering]
            return self._busiest(sorted(_names(each for _, each in found)), found, silent)
        nodes = self.nodes() if names else self.known()
        listed = self._listed_topics(nodes) if names else []
        found = self._summaries(nodes)
        answering = {node.name for node, _ in found}
        silent = [each.name for each in nodes if each.name not in answering]
        return self._busiest(listed, found, silent)

    def _busiest(
        self,
        names: Sequence[str],
        found: Sequence[tuple[Node, Summary]],
        silent: Sequence[str],
    ) -> "Busiest":
        busy = {name for _, each in found for name in each.busy}
        return Busiest(names, self._completed(found, busy), silent)

    def complete(self, busiest: "Busiest", names: Iterable[str]) -> "Busiest":
        """Return these topics, with the rows for the topics with these names in addition."""
        return busiest._replace(found=self._completed(busiest.found, names))

    def _completed(
        self, found: Sequence[tuple[Node, Summary]], names: Iterable[str]
    ) -> list[tuple[Node, Summary]]:
        """Return the summaries with the rows for the topics with these names."""
        nodes = {node.name: node for node, _ in found}

        def ask(name: str, topics: Sequence[str]) -> list[TopicStats]:
            node = nodes[name]
            return summaries.rows_of_nsqd(node.url, node.producer, topics, web=self._web)

        parts = {node.name: each for node, each in found}
        known = {node.name: node.producer.topics for node, _ in found if node.producer.topics}
        completed, outcome = summaries.complete(parts, names, ask, self._web.terms.whole, known)
        self._note(outcome, NSQD)
        return [(nodes[name], each) for name, each in completed.items()]

    def totals(self) -> Totals:
        """Return the totals of all topics. Raises HttpError if no nsqd answers."""
        return summaries.sum_totals(each.totals for each in self._counts())

    def origins(self) -> Origins:
        """Return the dead-letter topics. Raises HttpError if no nsqd answers."""
        return summaries.sum_origins(each.origins for each in self._counts())

    def _counts(self) -> list[Summary]:
        """Return the summaries of all nsqds without topics."""
        if self.by_lookupds:
            found = self._ask_nodes(self.known(), lambda node: self._summary(node, 0))
        else:
            found = self._summaries_of_nsqds(0)
        return [each for _, each in found]

    def everything(self) -> NodeStats:
        """Return the rows for all topics, without clients."""
        if not self.by_lookupds:
            return self._rows_of_nsqds()
        return self._rows(self.known())

    def node(self, name: str) -> NodeStats:
        """Return the rows for one node, with clients. Raises HttpError (404) if it is unknown."""
        return self._rows([self.find(name)], clients=True)

    def connections(self, nodes: Iterable[Node]) -> list[Connection]:
        """Return the connections to these nsqds."""
        found = self._ask_nodes(
            nodes, lambda node: connections.of_nsqd(node.url, node.name, web=self._web)
        )
        return [each for _, answer in found for each in answer]

    def _rows(
        self, nodes: Iterable[Node], topic: str = "", channel: str = "", clients: bool = False
    ) -> NodeStats:
        """Query the statistics of these nsqds."""

        def ask(node: Node) -> list[TopicStats]:
            return stats.of_nsqd(
                node.url, node.producer, topic, channel, web=self._web, clients=clients
            )

        return NodeStats(self._ask_nodes(nodes, ask))

    def _ask_nodes(
        self, nodes: Iterable[Node], ask: Callable[[Node], Value]
    ) -> list[tuple[Node, Value]]:
        """Query these nsqds. Raises HttpError if none answers."""
        by_name = {node.name: node for node in nodes}
        outcome = ask_all(list(by_name), lambda name: ask(by_name[name]), self._web.terms.whole)
        self._collect(outcome, NSQD)
        return [(by_name[name], value) for name, value in outcome.values.items()]

    def _summaries(self, nodes: Iterable[Node]) -> list[tuple[Node, Summary]]:
        """Query the summaries of these nsqds. It is no error if none answers."""
        by_name = {node.name: node for node in nodes}
        outcome = ask_all(
            list(by_name), lambda name: self._summary(by_name[name]), self._web.terms.whole
        )
        self._note(outcome, NSQD)
        return [(by_name[name], each) for name, each in outcome.values.items()]

    def _summary(self, node: Node, count: int = BUSIEST) -> Summary:
        return summaries.of_nsqd(node.url, node.producer, web=self._web, count=count)

    def _summaries_of_nsqds(
        self, count: int = BUSIEST, *, names: bool = False
    ) -> list[tuple[Node, Summary]]:
        """Query the summaries of the nsqds in the options. Raises HttpError if none answers."""
        urls = {address: daemon_url(address) for address in self._nsqds}

        def ask(address: str) -> tuple[Producer, Summary]:
            url = urls[address]
            node = stats.node_info(url, web=self._web)
            return node, summaries.of_nsqd(url, node, web=self._web, names=names, count=count)

        outcome = ask_all(list(urls), ask, 2 * self._web.terms.whole)
        self._collect(outcome, NSQD)
        answers = outcome.values.items()
        return [(Node(producer, at), each) for at, (producer, each) in answers]

    def _rows_of_nsqds(
        self, topic: str = "", channel: str = "", clients: bool = False
    ) -> NodeStats:
        """Query the statistics of the nsqds in the options."""
        outcome = stats.nsqds(self._nsqds, topic, channel, web=self._web, clients=clients)
        self._collect(outcome, NSQD)
        answers = outcome.values.items()
        return NodeStats([(Node(producer, at), rows) for at, (producer, rows) in answers])

    def _configured_nodes(self) -> list[Node]:
        urls = {address: daemon_url(address) for address in self._nsqds}

        def ask(address: str) -> Producer:
            return stats.node_info(urls[address], web=self._web)

        outcome = ask_all(self._nsqds, ask, self._web.terms.whole)
        self._collect(outcome, NSQD)
        return [Node(producer, at) for at, producer in outcome.values.items()]

    # Requests to daemons

    def post_to_lookupds(self, path: str, **query: str) -> Posted:
        """POST to every nsqlookupd. A failure adds a warning."""
        urls = {each: daemon_url(lookupd_url(each, path)) for each in self.lookupds}
        return self._post(urls, query, path)

    def post_to_nodes(self, nodes: Iterable[Node], path: str, **query: str) -> Posted:
        """POST to these nsqds. A failure adds a warning."""
        return self._post({node.at or node.name: node for node in nodes}, query, path)

    def _post(
        self, places: Mapping[str, Node | Url], query: Mapping[str, str], path: str
    ) -> Posted:
        def ask(name: str) -> None:
            place = places[name]
            url = place.url._replace(path=f"/{path}") if isinstance(place, Node) else place
            url = url._replace(query=urlencode(query))
            self._web.fetch(url, "POST", body=b"", maximum=MAX_POST_ANSWER)

        outcome = ask_all(list(places), ask, self._web.terms.whole)
        if outcome.errors:
            self.warn(_texts(outcome.errors))
        return outcome

    # Beyond NSQ's API

    def peek(
        self, topic: str, channel: str, node: str, params: Mapping[str, str]
    ) -> list[NodeAnswer]:
        """Return the messages in a channel or, if no channel is given, in the topic itself."""
        what, names = target(topic, channel)
        return self._query_each(topic, node, f"{what}/peek", {**names, **params}, PEEKED)

    def keys(self, topic: str, channel: str, params: Mapping[str, str]) -> list[NodeAnswer]:
        """Return the keys of a channel with the most waiting messages on each nsqd."""
        _, names = target(topic, channel)
        return self._query_each(topic, "", "channel/keys", {**names, **params}, KEYS)

    def policies(self, topic: str, channel: str, node: str = "") -> list[NodeAnswer]:
        what, names = target(topic, channel)
        return self._query_each(topic, node, f"{what}/config", names, POLICY)

    def log_positions(self, topic: str, to: str) -> list[NodeAnswer]:
        """Return the logs of a topic, and the position of `to` in each of them."""
        return self._query_each(topic, "", "topic/log", {"topic": topic, "at": to}, LOG)

    def dead_letter_channels(self, topics: Iterable[str]) -> list[tuple[str, str]]:
        """Return the channels of these topics as (topic, channel). A topic without channels has one
        entry with an empty channel."""
        found: list[tuple[str, str]] = []
        for topic in topics:
            try:
                rows = self.topic(topic)
            except HttpError as error:
                if error.status != 404:
                    raise
                continue  # the first dead letter creates it
            channels = sorted({name for row in rows.topics for name in row.channels})
            found += [(topic, channel) for channel in channels or ("",)]
        return found

    def drain_state(self, node: Node) -> NodeAnswer | None:
        """Return a node's draining state; None if it does not answer."""
        return next(iter(self._request_each([node], DRAIN_PATH, {}, form=DRAIN)), None)

    def health(self, nodes: Iterable[Node]) -> list[NodeAnswer]:
        """Return the state of these nsqds' processes and disks."""
        return self._request_each(nodes, "node", {}, form=NODE)

    def copies(self, nodes: Iterable[Node]) -> list[NodeAnswer]:
        """Return the groups of copies that these nsqds own or hold."""
        return self._request_each(nodes, "copies", {}, form=COPIES)

    def all_copies(self) -> tuple[list[NodeAnswer], bool]:
        """Return the groups of copies of all nsqds, and whether all have answered. Raises HttpError
        if none does."""
        nodes = self.known()
        answers = self.copies(nodes)
        if nodes and not answers:
            raise self._no_answer(NSQD, self._silent_text)
        return answers, not self._silent

    def command_each(
        self, nodes: Iterable[Node], path: str, query: Mapping[str, str], method: str, body: bytes
    ) -> list[NodeAnswer]:
        """Send a command to each of these nsqds. A refusal adds a warning. Raises HttpError if all
        refuse."""
        answers = self._answered(self._request_each(nodes, path, query, method, body))
        refused = [each for each in answers if not each.is_done]
        if refused and len(refused) == len(answers):
            raise HttpError(refused[0].status, _reasons(refused))
        if refused:
            self.warn(_reasons(refused))
        return answers

    def publish(
        self, node: Node, query: Mapping[str, str], headers: Mapping[str, str], body: bytes
    ) -> None:
        """Publish a message to an nsqd. Raises HttpError if the nsqd does not accept it."""
        url = node.url._replace(path="/pub", query=urlencode(query))
        try:
            answer = self._web.ask(url, "POST", headers, body, maximum=MAX_POST_ANSWER)
        except RequestError as error:
            raise self._failure(f"{node.name}: {error}") from None
        if answer.status != 200:
            refused = read_answer(node.name, answer)
            raise HttpError(refused.status, refused.reason)

    def _query_each(
        self, topic: str, node: str, path: str, query: Mapping[str, str], form: Form
    ) -> list[NodeAnswer]:
        """Query the nsqds that have a topic, or one of them."""
        nodes = self.nodes_with(topic, node)
        return self._answered(self._request_each(nodes, path, query, form=form))

    def _answered(self, answers: list[NodeAnswer]) -> list[NodeAnswer]:
        """Return the responses. Raises HttpError if there are none, or if no nsqd has the
        target."""
        if not answers:
            raise self._no_answer(NSQD, self._silent_text)
        if all(each.unknown for each in answers):
            raise self.not_found(answers[0].unknown)
        return answers

    def _request_each(
        self,
        nodes: Iterable[Node],
        path: str,
        query: Mapping[str, str],
        method: str = "GET",
        body: bytes | None = None,
        form: Form = anything,
    ) -> list[NodeAnswer]:
        """Query each of these nsqds, and parse each response with `form`. A failure adds a
        warning."""
        by_name = {node.name: node for node in nodes}

        def ask(name: str) -> NodeAnswer:
            url = by_name[name].url._replace(path=f"/{path}", query=urlencode(query) or None)
            return read_answer(
                name, self._web.ask(url, method, body=body, maximum=MAX_ANSWER), form
            )

        outcome = ask_all(list(by_name), ask, self._web.terms.whole)
        self._note(outcome, "nsqd")
        return list(outcome.values.values())

    # Errors

    def not_found(self, code: str) -> HttpError:
        """Return a 404 error, or 502 if some daemon did not answer."""
        if not self._silent:
            return HttpError(404, code)
        text = f"not found, but some daemons did not answer: {self._silent_text}"
        return self._failure(text)

    @property
    def _silent_text(self) -> str:
        return "\n".join(dict.fromkeys(self._silent))

    def _collect(
        self,
        outcome: Outcome[Key, Value],
        daemon: str,
        unknown: Container[Key] = (),
    ) -> list[Value]:
        """Return the responses, and convert failures to warnings. Raises HttpError if there are no
        responses. unknown: daemons that answered although they are among the failures."""
        if not outcome.values:
            is_known = bool(outcome.errors) and not self._outages.note((), outcome.errors)
            raise self._no_answer(daemon, _texts(outcome.errors), is_known=is_known)
        self._note(outcome, daemon, unknown)
        return list(outcome.values.values())

    def _note(
        self, outcome: Outcome[Key, Value], daemon: str, answered: Container[Key] = ()
    ) -> None:
        errors = outcome.errors
        is_new = self._outages.note(outcome.values, errors)
        if errors:
            self.warn(_texts(errors, f"{daemon} "), is_known=not is_new)
        silent = {key: error for key, error in errors.items() if key not in answered}
        if silent:
            self._silent.append(_texts(silent))

    def warn(self, text: str, *, is_known: bool = False) -> None:
        """Add a warning, and log it unless it belongs to a known outage."""
        if not is_known:
            events.upstream_failed(self._log, text)
        self.warnings.append(text)

    def _no_answer(self, daemon: str, text: str, *, is_known: bool = False) -> HttpError:
        text = f"failed to query any {daemon}: {text or f'no {daemon} is known'}"
        return self._failure(text, is_known=is_known)

    def _failure(self, text: str, *, is_known: bool = False) -> HttpError:
        if not is_known:
            events.request_failed(self._log, text)
        return HttpError(502, f"UPSTREAM_ERROR: {text}")


def _names(found: Iterable[Summary]) -> set[str]:
    """Return the names of all topics."""
    return {name for each in found for name in each.names or ()}


def _texts(errors: Mapping[Key, RequestError], before: str = "") -> str:
    """Return a line for each address. before: the kind of daemon, where it is not obvious."""
    return "\n".join(f"{before}{address}: {error}" for address, error in errors.items())


def _outcome(found: discovery.Found) -> Outcome[str, Sequence[Producer]]:
    """Return the responses from nsqlookupds. As in NSQ, an nsqlookupd that does not list the topic
    counts as failed."""
    outcome: Outcome[str, Sequence[Producer]] = Outcome()
    outcome.values.update(found.answers)
    outcome.errors.update(found.unknown)
    outcome.errors.update(found.errors)
    return outcome


class _NoLog:
    def info(self, text: str, /, **fields: object) -> None: ...
    def warn(self, text: str, /, **fields: object) -> None: ...
    def error(self, text: str, /, **fields: object) -> None: ...


def quiet_view(sources: Sources, web: WebClient) -> ClusterView:
    """Return a view for regular queries: it does not log their errors, which would recur."""
    log = _NoLog()
    return ClusterView(sources, web, log, Outages(log))


class Busiest(NamedTuple):
    """The busiest topics, and the nsqds. names: of all topics, sorted, if requested. found: the
    summaries of the nsqds that answer, with the rows for all topics that are busy on some nsqd.
    silent: names of the other nsqds."""

    names: Sequence[str]
    found: Sequence[tuple[Node, Summary]]
    silent: Sequence[str]

    @property
    def nodes(self) -> list[Node]:
        return [node for node, _ in self.found]

    @property
    def topics(self) -> dict[str, TopicStats]:
        """The topics that have rows, summed over the nsqds."""
        return stats.sum_topics(row for _, each in self.found for row in each.rows)

    @property
    def totals(self) -> Totals:
        return summaries.sum_totals(each.totals for _, each in self.found)

    @property
    def origins(self) -> Origins:
        return summaries.sum_origins(each.origins for _, each in self.found)

    @property
    def omitted(self) -> int:
        """Number of topics without rows; a topic on several nsqds counts once for each."""
        return sum(each.omitted for _, each in self.found)

    @property
    def unseen(self) -> int:
        """Number of these topics that may have problems."""
        return sum(each.unseen for _, each in self.found)

    @property
    def lost(self) -> list[str]:
        """The topics that no responding nsqd has; none if all nsqds are silent."""
        if self.silent and not self.found:
            return []
        had: set[str] = set()
        for node, each in self.found:
            had.update(row.name for row in each.rows)
            if not each.is_complete:
                had.update(node.producer.topics if each.names is None else each.names)
        return [name for name in self.names if name not in had]


class Done(NamedTuple):
    """A completed action: the nsqds' responses. `cluster` contains the warnings."""

    cluster: ClusterView
    answers: Sequence[NodeAnswer] = ()


def target(topic: str, channel: str) -> tuple[str, dict[str, str]]:
    """Return the target's kind, "topic" or "channel", and its query parameters."""
    if channel:
        return "channel", {"topic": topic, "channel": channel}
    return "topic", {"topic": topic}


def dead_letter_topics(policies: Iterable[NodeAnswer]) -> list[str]:
    """Return the dead-letter topics in a channel's policies."""
    values = [
        each.value["config"].get("dead_letter_topic", {}) for each in policies if each.is_done
    ]
    return sorted({each["value"] for each in values if each.get("value")})


def _reasons(refused: Sequence[NodeAnswer]) -> str:
    """Return the reason for each nsqd's refusal, or a single text if all are the same."""
    reasons = list(dict.fromkeys(each.reason for each in refused))
    if len(reasons) == 1:
        return reasons[0]
    return "\n".join(f"{each.node}: {each.reason}" for each in refused)
