"""Topics, channels and policies of an nsqd, for programs that manage them, and a view of its
messages.

Chooses the requests; cluster/http_clients.py sends them. That module imports urllib3, which is slow
to import, so it is imported when an NsqdAdmin is created. Independent of consumers and producers.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from nsqcy.client.arguments import LIMIT, check_argument, check_arguments, check_names
from nsqcy.client.peeked_message import PeekedMessage
from nsqcy.client.times import Duration, seconds
from nsqcy.errors import RequestError

NOT_FOUND = 404
Position = str | int | datetime


class NsqdAdmin:
    """Creates and changes topics and channels of one nsqd, sets their policies, and shows their
    statistics, through its HTTP port.

        admin = NsqdAdmin("127.0.0.1:4151")
        admin.create_channel("orders", "billing")
        admin.channel_policy("orders", "billing", max_attempts=3, dead_letter_topic="orders-dead")

    `auth_secret` is the token of a user with the required permissions, for an nsqd with
    --auth-file. `timeout` applies to each request. All methods are thread-safe, and may be called
    repeatedly with the same result. They raise RequestError if nsqd refuses (`status` is that of
    its response) or does not answer (0), and ValueError for an invalid name. Policies, peek(),
    redrive() and seek() are features of nsqcy's nsqd.
    """

    def __init__(
        self,
        nsqd_http_address: str,
        *,
        auth_secret: str | None = None,
        timeout: Duration = 5.0,
    ) -> None:
        from nsqcy.cluster.http_clients import NsqdHTTPClient
        from nsqcy.cluster.web_client import Terms

        check_arguments(nsqd_http_address=nsqd_http_address, auth_secret=auth_secret)
        check_argument("timeout", timeout, LIMIT)
        terms = Terms(request_timeout=seconds(timeout), token=auth_secret or "")
        self._nsqd = NsqdHTTPClient.from_url(nsqd_http_address, terms=terms)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._nsqd.address!r}>"

    @contextmanager
    def _errors_with_address(self) -> Iterator[None]:
        try:
            yield
        except RequestError as error:
            from nsqcy.cluster.web_client import describe

            what = describe(error).removeprefix(f"{error.path}: ")
            text = f"{self._nsqd.address.rstrip('/')}{error.path}: {what}"
            raise RequestError(text, error.status, error.body, error.path) from None

    def create_topic(self, topic: str) -> None:
        """Create a topic, unless it exists."""
        with self._errors_with_address():
            self._nsqd.create_topic(topic)

    def create_channel(self, topic: str, channel: str) -> None:
        """Create a channel, and its topic, unless they exist."""
        check_names(topic=topic, channel=channel)
        with self._errors_with_address():
            self._nsqd.create_topic(topic)
            self._nsqd.create_channel(topic, channel)

    def delete_topic(self, topic: str) -> bool:
        """Delete a topic with its channels and all messages. Return whether it existed."""
        with self._errors_with_address():
            return _existed(self._nsqd.delete_topic, topic)

    def delete_channel(self, topic: str, channel: str) -> bool:
        """Delete a channel with its messages. Return whether it existed."""
        with self._errors_with_address():
            return _existed(self._nsqd.delete_channel, topic, channel)

    def empty_topic(self, topic: str) -> None:
        """Drop the messages in the topic itself, but not those in its channels."""
        with self._errors_with_address():
            self._nsqd.empty_topic(topic)

    def empty_channel(self, topic: str, channel: str) -> None:
        """Drop the messages of a channel."""
        with self._errors_with_address():
            self._nsqd.empty_channel(topic, channel)

    def pause_topic(self, topic: str) -> None:
        """Pause a topic: its channels receive no new messages."""
        with self._errors_with_address():
            self._nsqd.pause_topic(topic)

    def unpause_topic(self, topic: str) -> None:
        """Unpause a topic."""
        with self._errors_with_address():
            self._nsqd.unpause_topic(topic)

    def pause_channel(self, topic: str, channel: str) -> None:
        """Pause a channel: its consumers receive no messages."""
        with self._errors_with_address():
            self._nsqd.pause_channel(topic, channel)

    def unpause_channel(self, topic: str, channel: str) -> None:
        """Unpause a channel."""
        with self._errors_with_address():
            self._nsqd.unpause_channel(topic, channel)

    def seek(self, topic: str, channel: str, to: Position) -> int:
        """Move a channel to a position in its topic's log, and return the position's sequence
        number.

        `to`: `"earliest"`, `"latest"`, a sequence number or a time; a datetime without a time zone
        is local.
        """
        check_arguments(to=to)
        if isinstance(to, datetime):
            to = to.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        with self._errors_with_address():
            return self._nsqd.seek_channel(topic, channel, str(to))

    def stats(self, topic: str | None = None, channel: str | None = None) -> dict[str, Any]:
        """Return the statistics of all topics, of one topic, or of one channel, as in nsqd's
        `/stats?format=json`. A topic that does not exist is missing from `["topics"]`."""
        if topic is None and channel is not None:
            raise ValueError("stats() for a channel requires the channel's topic")
        with self._errors_with_address():
            found = self._nsqd.stats(topic, channel)
        assert isinstance(found, dict)
        return found | {"topics": found.get("topics") or []}  # JSON null if there are none

    def topic_policy(self, topic: str, **keys: Any) -> dict[str, Any]:
        """Set keys of a topic's policy; None resets a key. Return all keys with their values.

        A duration is a string such as `"30s"`, or a timedelta. Neither the topic nor the channel of
        a policy has to exist.
        """
        with self._errors_with_address():
            return _values(self._nsqd.topic_config(topic, _settings(keys)))

    def channel_policy(self, topic: str, channel: str, **keys: Any) -> dict[str, Any]:
        """Set keys of a channel's policy, like topic_policy()."""
        with self._errors_with_address():
            return _values(self._nsqd.channel_config(topic, channel, _settings(keys)))

    def peek(
        self, topic: str, channel: str, state: str = "queued", *, count: int = 20
    ) -> list[PeekedMessage]:
        """Return the first `count` messages of a channel without consuming them.

        state: `queued`, `in_flight` or `deferred`; deferred messages are ordered by due time.
        """
        from nsqcy.cluster.peeking import MAX_BODY, messages

        check_arguments(state=state, count=count)

        def page(count: int, start: str | None) -> dict[str, Any]:
            return self._nsqd.peek_channel(
                topic, channel, state, count=count, start=start, max_body=MAX_BODY
            )

        with self._errors_with_address():
            return [PeekedMessage.of(each) for each in messages(page, count)]

    def redrive(
        self, topic: str, channel: str, *, id: str | None = None, limit: int | None = None
    ) -> int:
        """Return the dead letters in a channel to the channels that they came from. Return the
        number of messages that nsqd will examine.

        id: only this message, as in PeekedMessage. limit: only the first N messages. Without both,
        or if both are None: all messages. Raises ValueError if both are given.
        """
        check_arguments(id=id, limit=limit)
        if id is not None and limit is not None:
            raise ValueError("id and limit cannot be combined")
        with self._errors_with_address():
            if id is None:
                return self._nsqd.redrive_channel(topic, channel, limit)
            self._nsqd.redrive_message(topic, channel, id)
            return 1


def _existed(delete: Callable[..., None], *names: str) -> bool:
    """Delete a topic or channel. Return whether it existed."""
    try:
        delete(*names)
    except RequestError as error:
        if error.status != NOT_FOUND:
            raise
        return False
    return True


def _settings(keys: dict[str, Any]) -> dict[str, Any] | None:
    """Return the keys as nsqd accepts them; None if there are none."""
    return {
        key: f"{value // timedelta(microseconds=1)}us" if isinstance(value, timedelta) else value
        for key, value in keys.items()
    } or None


def _values(answer: dict[str, Any]) -> dict[str, Any]:
    return {key: each["value"] for key, each in answer["config"].items()}
