"""Queries nsqds for their copies, in parallel over HTTP."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from urllib3.util import Url

from nsqcy.cluster import answers, copies, discovery
from nsqcy.cluster.discovery import daemon_url
from nsqcy.cluster.parallel import ask_all
from nsqcy.cluster.web_client import WebClient, unwanted
from nsqcy.errors import RequestError

MAX_ANSWER = 32 << 20  # bytes
NOT_FOUND = 404


@dataclass(frozen=True)
class Answer:
    """The response of the daemon at an address. If `error` is set, there are no workers."""

    address: str
    workers: Sequence[dict[str, Any]] = ()
    error: str = ""
    daemon: str = "nsqd"


def ask(lookupds: Sequence[str], nsqds: Sequence[str], web: WebClient) -> list[Answer]:
    """Return the responses of all nsqds, given or announced, and the failures of nsqlookupds.
    Raises ValueError for an invalid address."""
    found = discovery.nodes(lookupds, web=web)
    failed = [
        Answer(address, error=str(error), daemon="nsqlookupd")
        for address, error in found.errors.items()
    ]
    urls = {address: daemon_url(address) for address in nsqds}
    for producer in found.producers:
        try:
            urls.setdefault(producer.http_address, producer.url)
        except RequestError as error:
            failed.append(Answer(producer.tcp_address, error=str(error)))
    outcome = ask_all(list(urls), lambda address: _workers(urls[address], web), web.terms.whole)
    failed += [Answer(address, error=str(error)) for address, error in outcome.errors.items()]
    return [*_once_each(outcome.values), *failed]


def _workers(url: Url, web: WebClient) -> list[dict[str, Any]]:
    answer = web.ask(url._replace(path="/copies"), maximum=MAX_ANSWER)
    if answer.status == NOT_FOUND:
        text = "/copies not found: the server is not nsqcy's nsqd, or is an older version"
        raise RequestError(text, NOT_FOUND)
    if answer.status != 200:
        raise unwanted(answer)
    found = answers.read(answer.body, answer.headers, copies.FIELDS)
    workers: list[dict[str, Any]] = found["workers"]
    return workers


def _once_each(found: dict[str, list[dict[str, Any]]]) -> list[Answer]:
    """Return the responses, but only one for an nsqd that has responded at several addresses."""
    kept: list[Answer] = []
    nodes: set[str] = set()
    for address, workers in found.items():
        its = {worker["node"] for worker in workers}
        if not its & nodes:
            kept.append(Answer(address, workers))
            nodes |= its
    return kept
