"""Sampler: a thread that queries all nsqds once per step.

An nsqd that does not answer is omitted; log lines report when the omission begins and ends. A
sample that takes longer than a step skips the next ones.
"""

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from nsqcy.cluster import summaries
from nsqcy.cluster.parallel import ask_all
from nsqcy.cluster.stats import MAX_ANSWER
from nsqcy.cluster.web_client import WebClient
from nsqcy.errors import HttpError, RequestError
from nsqcy.logging.types import Lines
from nsqcy.nsqadmin.cluster.copies import Sighting
from nsqcy.nsqadmin.cluster.nodes import Node
from nsqcy.nsqadmin.cluster.outages import Outages
from nsqcy.nsqadmin.cluster.view import ClusterView, Sources, quiet_view
from nsqcy.nsqadmin.history.rates import Rates, Reading, reading
from nsqcy.nsqadmin.history.store import History

PATIENCE = 3.5  # maximum steps over which a rate is averaged
_SHARE = 0.5  # maximum fraction of a step for a query, regardless of the timeouts
_COPIES_INTERVAL = 60.0  # seconds between two queries about copies
_FIRST_WITHIN = 1.0  # maximum seconds from the start to the first sample


class Sampler:
    def __init__(
        self,
        sources: Sources,
        web: WebClient,
        history: History,
        log: Lines,
        sighting: Sighting,
        outages: Outages,
    ) -> None:
        terms, maximum = web.terms, history.step * _SHARE
        self._web = WebClient(
            replace(
                terms,
                connect_timeout=min(terms.connect_timeout or maximum, maximum),
                request_timeout=min(terms.whole, maximum),
            )
        )
        self._sources = sources
        self._history = history
        self._log = log
        self._sighting = sighting
        self._outages = outages
        self._copies_due = float("-inf")
        self._rates = Rates(PATIENCE * history.step)
        self._nodes: Mapping[str, Node] = {}  # as last known
        self._silent: frozenset[str] = frozenset()
        # Parsing takes much memory and does not benefit from threads: parse one response at a time.
        self._reading = threading.Lock()

    def start(self) -> None:
        threading.Thread(target=self._run, name="history", daemon=True).start()

    def _run(self) -> None:
        # A random start keeps several nsqadmins from querying at the same time.
        due = time.monotonic() + random.uniform(0, min(self._history.step, _FIRST_WITHIN))
        while True:
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                self.sample()
            except Exception as error:  # ignored, because the next sample may succeed
                self._log.error(f"history: {type(error).__name__}: {error}")
            due = next_due(due, time.monotonic(), self._history.step)

    def sample(self) -> None:
        nodes = self._known()
        outcome = ask_all(list(nodes), self._asker(nodes), self._web.terms.whole)
        self._report(frozenset(outcome.errors), outcome.errors)
        if outcome.values:
            self._history.add(time.monotonic(), self._rates.rows(outcome.values))
        if time.monotonic() >= self._copies_due:
            self._copies_due = time.monotonic() + _COPIES_INTERVAL
            self._look_for_copies([nodes[name] for name in outcome.values], len(nodes))

    def _look_for_copies(self, answering: Sequence[Node], known: int) -> None:
        """Record whether nsqds have groups of copies, so that pages link to them."""
        answers = quiet_view(self._sources, self._web).copies(answering)
        self._sighting.note(answers, of_all=len(answers) == known)

    def _known(self) -> Mapping[str, Node]:
        """Return the current nsqds, or the last known ones if nsqlookupds do not answer."""
        cluster = ClusterView(self._sources, self._web, self._log, self._outages)
        try:
            self._nodes = {each.name: each for each in cluster.known()}
        except HttpError:
            pass
        return self._nodes

    def _asker(self, nodes: Mapping[str, Node]) -> Callable[[str], Reading]:
        def ask(name: str) -> Reading:
            node = nodes[name]
            answer = self._web.fetch(summaries.summary_url(node.url), maximum=MAX_ANSWER)
            at = time.monotonic()
            with self._reading:
                return reading(at, summaries.parse_summary(answer.body, answer.headers, name))

        return ask

    def _report(self, silent: frozenset[str], errors: Mapping[str, RequestError]) -> None:
        for name in sorted(silent - self._silent):
            self._log.warn(f"history: {name} is omitted: {errors[name]}")
        for name in sorted(self._silent - silent):
            self._log.info(f"history: {name} is included again")
        self._silent = silent


def next_due(due: float, now: float, step: float) -> float:
    """Return the next time on the schedule that is in the future."""
    return due + step * max(1, int((now - due) // step) + 1)
