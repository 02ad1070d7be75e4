"""The line about topics that cannot be read."""

from typing import Any

from nsqcy.nsqd.worker.read_health import read_health


def failed(topic: str, since: int) -> dict[str, Any]:
    path = f"/data/{topic}.topic/1.seg"
    text = f"read {path}: input/output error"
    return {"topic": topic, "path": path, "error": "EIO", "text": text, "since": since}


def test_it_names_the_topic_the_time_the_file_and_the_errno() -> None:
    assert read_health([]) is None
    line = (
        "topic t has been unreadable since 2023-11-14T22:13:20Z: read /data/t.topic/1.seg: "
        "input/output error (EIO)"
    )
    first = failed("t", 1_700_000_000_999_999_999)
    assert read_health([first]) == line
    assert read_health([first, failed("u", 0)]) == f"{line}; 1 more topic is unreadable"
    more = "; 2 more topics are unreadable"
    assert read_health([first, failed("u", 0), failed("v", 0)]) == line + more
