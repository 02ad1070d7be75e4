"""Cancels deferred messages by a key in their headers.

Owns the arguments and errors of cancel(). cluster/deferred.py finds the messages. urllib3 is slow
to import, so cancel() imports the HTTP client itself.
"""

from nsqcy.client.arguments import LIMIT, check_argument, check_arguments, check_names
from nsqcy.client.options import Addresses, as_strings
from nsqcy.client.times import Duration, seconds
from nsqcy.errors import RequestError
from nsqcy.names import quote

CANCEL_KEY = "cancel-key"


def cancel(
    topic: str,
    channel: str,
    key: str,
    nsqd_http_addresses: Addresses,
    *,
    header: str = CANCEL_KEY,
    auth_secret: str | None = None,
    timeout: Duration = 5.0,
) -> int:
    """Drop a channel's deferred messages that have this key in a header; return their number.

    The messages were published with `headers={"cancel-key": key}`, or with another `header`. Each
    nsqd must be nsqcy's. cancel() reads the headers of all deferred messages of the channel. A
    topic or channel that does not exist has no messages. `timeout` applies to each request.

    Raises Error if an nsqd fails, after trying all of them. Raises ValueError and TypeError for
    invalid arguments.
    """
    from nsqcy.cluster.deferred import PeekedMessage, cancel_deferred, is_missing
    from nsqcy.cluster.http_clients import NsqdHTTPClient
    from nsqcy.cluster.web_client import Terms

    if not (isinstance(key, str) and key):
        raise ValueError(f"the key to cancel must be non-empty text, not {key!r}")
    check_arguments(header=header, auth_secret=auth_secret)
    check_argument("timeout", timeout, LIMIT)
    check_names(topic=topic, channel=channel)
    terms = Terms(request_timeout=seconds(timeout), token=auth_secret or "")
    nsqds = [NsqdHTTPClient.from_url(each, terms=terms) for each in as_strings(nsqd_http_addresses)]
    if not nsqds:
        raise ValueError("cancel() needs nsqd_http_addresses")

    def has_key(message: PeekedMessage) -> bool:
        return bool(message["headers"].get(header) == key)

    cancelled, failure = 0, None
    for nsqd in nsqds:
        try:
            cancelled += cancel_deferred(nsqd, topic, channel, has_key)
        except RequestError as error:
            if not is_missing(error):
                failure = failure or RequestError(
                    f"{nsqd.address.rstrip('/')}{error.path}: cannot cancel {quote(key)}: {error}",
                    error.status,
                    error.body,
                    error.path,
                )
    if failure is not None:
        raise failure
    return cancelled
