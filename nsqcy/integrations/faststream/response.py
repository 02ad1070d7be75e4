"""Results of handlers, and commands to publish them."""

from typing import Any, Self

from faststream.response.publish_type import PublishType
from faststream.response.response import BatchPublishCommand, PublishCommand, Response

from nsqcy.client.keys import keyed
from nsqcy.integrations.faststream.message import CORRELATION_ID, REPLY_TO


class NsqResponse(Response):
    """Result of a handler, with headers, a delay in seconds, a key, a deduplication id and a
    priority for the message to publish."""

    def __init__(
        self,
        body: Any,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        delay: float | None = None,
        key: str | None = None,
        dedup_id: str | None = None,
        priority: int | None = None,
    ) -> None:
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self.delay = delay
        self.key = key
        self.dedup_id = dedup_id
        self.priority = priority

    def as_publish_command(self) -> "NsqPublishCommand":
        return NsqPublishCommand(
            self.body,
            headers=self.headers,
            correlation_id=self.correlation_id,
            delay=self.delay,
            key=self.key,
            dedup_id=self.dedup_id,
            priority=self.priority,
            _publish_type=PublishType.PUBLISH,
        )


class NsqPublishCommand(BatchPublishCommand):
    """One or more messages to publish to a topic."""

    def __init__(
        self,
        message: Any,
        /,
        *messages: Any,
        topic: str = "",
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        delay: float | None = None,
        key: str | None = None,
        dedup_id: str | None = None,
        priority: int | None = None,
        _publish_type: PublishType,
    ) -> None:
        super().__init__(
            message,
            *messages,
            destination=topic,
            headers=headers,
            correlation_id=correlation_id,
            reply_to=reply_to,
            _publish_type=_publish_type,
        )
        self.delay = delay
        self.key = key
        self.dedup_id = dedup_id
        self.priority = priority

    @property
    def has_keys(self) -> bool:
        return (self.key, self.dedup_id, self.priority) != (None, None, None)

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> Self:
        """Return a command of this class; a sequence is several messages if `batch` is true."""
        if isinstance(cmd, cls):
            if batch:
                cmd.body, cmd.extra_bodies = cls._parse_bodies(cmd.body, batch=True)
            return cmd
        body, more = cls._parse_bodies(cmd.body, batch=batch)
        return cls(
            body,
            *more,
            topic=cmd.destination,
            headers=cmd.headers,
            correlation_id=cmd.correlation_id,
            reply_to=cmd.reply_to,
            _publish_type=cmd.publish_type,
        )

    def message_headers(self) -> dict[str, str]:
        """Return the headers to publish, without the content type. Raises ValueError and TypeError
        for an invalid key, deduplication id or priority."""
        own = {name: str(value) for name, value in self.headers.items()}
        headers = dict(keyed(own, self.key, self.dedup_id, self.priority) or {})
        if self.correlation_id:
            headers[CORRELATION_ID] = self.correlation_id
        if self.reply_to:
            headers[REPLY_TO] = self.reply_to
        return headers
