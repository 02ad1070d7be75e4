"""The broker's logger, whose lines show topic, channel and message id."""

import logging
from functools import partial
from typing import Any

from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger

ID_LENGTH = 16


class _Storage(DefaultLoggerStorage):
    def __init__(self) -> None:
        super().__init__()
        self._topic_width = 4
        self._channel_width = 4
        self.logger_log_level = logging.INFO

    def set_level(self, level: int) -> None:
        self.logger_log_level = level

    def register_subscriber(self, params: dict[str, Any]) -> None:
        self._topic_width = max(self._topic_width, len(params.get("topic", "")))
        self._channel_width = max(self._channel_width, len(params.get("channel", "")))

    def get_logger(self, *, context: Any) -> Any:
        if not (found := self._get_logger_ref()):
            found = get_broker_logger(
                name="nsq",
                default_context={"topic": "", "channel": ""},
                message_id_ln=ID_LENGTH,
                fmt=(
                    f"%(asctime)s %(levelname)-8s - %(topic)-{self._topic_width}s | "
                    f"%(channel)-{self._channel_width}s | %(message_id)-{ID_LENGTH}s - %(message)s"
                ),
                context=context,
                log_level=self.logger_log_level,
            )
            self._logger_ref.add(found)
        return found


make_nsq_logger_state = partial(make_logger_state, default_storage_cls=_Storage)
