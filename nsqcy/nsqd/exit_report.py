"""Text about messages that an exit could not save. Pure."""

from collections.abc import Mapping

SHOWN = 100  # maximum number of topics in a line


def describe(unsaved: Mapping[str, int]) -> str:
    """Return the number of messages that are not on disk, in total and for each topic.

    A topic with 0 messages has all of them on disk, but not the state of its channels.
    """
    total = sum(unsaved.values())
    names = [
        f"{topic} ({count or 'its journal'})" for topic, count in sorted(unsaved.items())[:SHOWN]
    ]
    if len(unsaved) > SHOWN:
        names.append(f"other topics: {len(unsaved) - SHOWN}")
    what = "1 message is" if total == 1 else f"{total} messages are"
    return f"{what} not on disk: {', '.join(names) or 'none'}"
