"""gnsq's HTTP clients, based on nsqcy.cluster's, but raising gnsq's error."""

from typing import Any

from nsqcy.cluster import http_clients
from nsqcy.cluster.web_client import Answer
from nsqcy.compat.gnsq.errors import NSQHttpError
from nsqcy.errors import RequestError


class _GnsqClient(http_clients.DaemonClient):
    """Raises gnsq's error."""

    def _request(self, *args: Any, **kwargs: Any) -> Answer:
        try:
            return super()._request(*args, **kwargs)
        except RequestError as error:
            raise NSQHttpError(str(error)) from error

    def _object(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        try:
            return super()._object(*args, **kwargs)
        except RequestError as error:
            raise NSQHttpError(str(error)) from error


class NsqdHTTPClient(_GnsqClient, http_clients.NsqdHTTPClient):
    """An nsqd."""


class LookupdClient(_GnsqClient, http_clients.LookupdClient):
    """A nsqlookupd."""
