"""Requests to an etcd cluster: endpoints, authentication and leases.

Each request uses the endpoint that answered last, or the others if that endpoint fails. Knows
nothing about the meaning of the keys.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from urllib3.exceptions import LocationParseError
from urllib3.util import Url, parse_url

from nsqcy.cluster.web_client import Terms, WebClient
from nsqcy.errors import RequestError
from nsqcy.etcd import messages
from nsqcy.etcd.messages import EtcdError, Expected, KeyValue, Put
from nsqcy.etcd.watch import Watch

MAX_RESPONSE = 64 << 20  # bytes
KEYS_PER_PAGE = 500
DEFAULT_PORT = 2379

# gRPC codes for failures after which another endpoint may succeed; 0 is a response that did not
# come from etcd.
ENDPOINT_FAILED = frozenset({0, messages.DEADLINE_EXCEEDED, messages.UNAVAILABLE})

T = TypeVar("T")


@dataclass(frozen=True)
class Credentials:
    """A user for etcd's own authentication. Client certificates cannot identify a user, because the
    JSON gateway hides them from etcd."""

    user: str
    password: str = field(repr=False)


def parse_endpoint(text: str) -> Url:
    """Return the URL of an endpoint: `http://host:2379`, `https://host` or `host:2379`.

    Raises ValueError."""
    try:
        url = parse_url(text if "://" in text else f"http://{text}")
    except LocationParseError:
        raise ValueError(f"invalid address {text!r}") from None
    if not url.host or url.scheme not in ("http", "https") or url.auth:
        raise ValueError(
            f"invalid address {text!r}: expected http://host:port or https://host:port"
        )
    if url.request_uri != "/":
        raise ValueError(f"invalid address {text!r}: remove {url.request_uri}")
    return Url(url.scheme, host=url.host, port=url.port or DEFAULT_PORT)


class EtcdClient:
    """Client for one cluster. Thread-safe.

    All methods block, and raise EtcdError if no endpoint returns a valid response in time. A failed
    request may still have been executed.
    """

    def __init__(
        self, endpoints: Sequence[Url], terms: Terms, credentials: Credentials | None = None
    ) -> None:
        self._endpoints = list(endpoints)
        self._first = 0
        """Index of the endpoint that answered last."""
        self._web = WebClient(replace(terms, token=""))
        self._credentials = credentials
        self._token = ""

    # -- keys

    def read(self, prefix: str) -> tuple[list[KeyValue], int]:
        """Return all keys with a prefix, sorted, and the store revision at which they were read."""
        found: list[KeyValue] = []
        revision, after = 0, ""
        while True:
            request = messages.listing(prefix, after=after, limit=KEYS_PER_PAGE, revision=revision)
            page = messages.page(self._call("kv/range", request))
            found += page.found
            revision = revision or page.revision
            if not (page.more and page.found):
                return found, revision
            after = page.found[-1].key

    def transact(
        self, expected: Sequence[Expected], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> bool:
        """Put and delete keys if all expectations hold; return whether they did.

        The result can be False even though the transaction succeeded, because a request that
        receives no response is repeated with the next endpoint.
        """
        response = self._call("kv/txn", messages.transaction(expected, puts, deletes))
        return response.get("succeeded") is True

    def watch(self, prefix: str, revision: int) -> Watch:
        """Return the changes to keys with a prefix, starting at a revision."""
        body = _encoded(messages.watch(prefix, revision))
        return self._try_endpoints(lambda endpoint: self._open_watch(endpoint, body))

    # -- leases

    def grant(self, seconds: int) -> int:
        """Create a lease; return its id."""
        return messages.integer(self._call("lease/grant", {"TTL": str(seconds)}), "ID")

    def keep_alive(self, lease: int) -> bool:
        """Extend a lease; return whether it still exists."""
        body = _encoded({"ID": str(lease)})
        line = self._try_endpoints(lambda endpoint: self._post(endpoint, "lease/keepalive", body))
        return messages.integer(messages.streamed(line), "TTL") > 0

    def revoke(self, lease: int) -> None:
        """End a lease and delete its keys. If the lease does not exist, this is not an error."""
        try:
            self._call("lease/revoke", {"ID": str(lease)})
        except EtcdError as error:
            if error.code != messages.NOT_FOUND:
                raise

    # -- inside

    def _call(self, path: str, request: dict[str, Any]) -> dict[str, Any]:
        body = _encoded(request)
        return messages.parsed(
            self._try_endpoints(lambda endpoint: self._post(endpoint, path, body))
        )

    def _try_endpoints(self, request: Callable[[Url], T]) -> T:
        """Return the first response from any endpoint. The next endpoint is tried only after a
        failure of the endpoint itself."""
        failures = []
        for _ in self._endpoints:
            first = self._first
            endpoint = self._endpoints[first]
            try:
                return self._authenticated(endpoint, request)
            except (EtcdError, RequestError) as error:
                if isinstance(error, EtcdError) and error.code not in ENDPOINT_FAILED:
                    raise
                failures.append(f"{endpoint}: {error}")
                self._first = (first + 1) % len(self._endpoints)
        raise EtcdError("; ".join(failures), messages.UNAVAILABLE)

    def _authenticated(self, endpoint: Url, request: Callable[[Url], T]) -> T:
        if self._credentials is None:
            return request(endpoint)
        if self._token:
            try:
                return request(endpoint)
            except EtcdError as error:
                if not error.wants_authentication:
                    raise
        self._token = self._authenticate(endpoint, self._credentials)
        return request(endpoint)

    def _authenticate(self, endpoint: Url, credentials: Credentials) -> str:
        self._token = ""
        body = _encoded({"name": credentials.user, "password": credentials.password})
        token = messages.parsed(self._post(endpoint, "auth/authenticate", body)).get("token")
        if not isinstance(token, str) or not token:
            raise EtcdError("authentication returned no token")
        return token

    def _post(self, endpoint: Url, path: str, body: bytes) -> bytes:
        answer = self._web.ask(
            _url(endpoint, path), "POST", self._headers(), body, maximum=MAX_RESPONSE
        )
        if answer.status != 200:
            raise messages.failure(answer.body, answer.status)
        return answer.body

    def _open_watch(self, endpoint: Url, body: bytes) -> Watch:
        try:
            return Watch(self._web.stream(_url(endpoint, "watch"), self._headers(), body))
        except RequestError as error:
            if error.status:
                raise messages.failure(error.body, error.status) from None
            raise

    def _headers(self) -> dict[str, str]:
        return {"Authorization": self._token} if self._token else {}


def _url(endpoint: Url, path: str) -> Url:
    return endpoint._replace(path=f"/v3/{path}")


def _encoded(request: dict[str, Any]) -> bytes:
    return json.dumps(request).encode()
