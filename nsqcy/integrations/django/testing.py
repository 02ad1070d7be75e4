"""Helpers for tests of projects."""

import contextlib
from collections.abc import Iterator

from nsqcy.integrations.django.configuration import current_settings
from nsqcy.integrations.django.publishing import process_producer
from nsqcy.integrations.web.recording import Published, RecordingProducer

__all__ = ["Published", "recorded_messages"]


@contextlib.contextmanager
def recorded_messages() -> Iterator[list[Published]]:
    """Record this process's messages in a list within the block, and send nothing.

    In a TestCase, add `captureOnCommitCallbacks(execute=True)` for messages that are published on
    commit.
    """
    recording = RecordingProducer(**current_settings().producer)
    with process_producer.replaced(recording):
        yield recording.messages
