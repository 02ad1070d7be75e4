"""The page on which a channel is sent to another place of its topic's log: what that means, first.

Pure: functions of what was gathered.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nsqcy.cluster.stats import ChannelStats
from nsqcy.nsqadmin.figures import number, plural
from nsqcy.nsqadmin.frame import Frame
from nsqcy.nsqadmin.markup import Markup, join, tag
from nsqcy.nsqadmin.saying import Said
from nsqcy.nsqadmin.subject_views import trail
from nsqcy.nsqadmin.tables import Question, notice, question_box, table


@dataclass(frozen=True)
class Move:
    """What a seek means on one node, in messages: `again` have been read by the channel before,
    `skipped` would never be, and `dropped` is all that it holds now."""

    node: str
    now: int
    then: int
    again: int
    skipped: int
    waiting: int
    dropped: int


def moves(channel: str, said: Iterable[Said], rows: Iterable[ChannelStats]) -> list[Move]:
    """Of the nodes that have the channel and can say where the place is."""
    held = {
        row.node: row.figures.depth + row.figures.in_flight_count + row.figures.deferred_count
        for row in rows
    }
    found = []
    for each in said:
        if not each.is_done or "at" not in each.value or channel not in each.value["channels"]:
            continue
        now, then, end = each.value["channels"][channel], each.value["at"], each.value["fanout_seq"]
        ways = max(0, now - then), max(0, then - now)
        found.append(Move(each.node, now, then, *ways, end - then, held.get(each.node, 0)))
    return found


def seek(
    frame: Frame,
    topic: str,
    channel: str,
    said: Sequence[Said],
    found: Sequence[Move],
    params: Mapping[str, str],
) -> list[Markup]:
    to = params.get("to", "")
    path = frame.link("seek", topic, channel)
    head = [trail(frame, topic, channel, "Seek"), tag("h1", f"Seek {topic}/{channel}")]
    if said and all(each.is_missing for each in said):
        return [*head, notice("No nsqd can seek: they are NSQ's, or of an older nsqcy.")]
    refused = [notice(f"{each.node}: {each.reason}.") for each in said if not each.is_done]
    return [*head, _places(path, to), *refused, *(_preview(path, topic, channel, to, found))]


def _places(path: str, to: str) -> Markup:
    def link(place: str, text: str) -> Markup:
        return tag("a", text, href=f"{path}?to={place}", class_="button")

    field = tag(
        "label",
        "A time such as 2026-01-31T12:00:00Z, or a sequence number ",
        tag("input", name="to", value="" if to in ("earliest", "latest") else to, required=True),
    )
    return join(
        tag("p", "Where the channel is to go on. What that means is shown first."),
        tag(
            "div",
            link("earliest", "To the Beginning"),
            link("latest", "To the End"),
            tag("form", field, " ", tag("button", "Show"), action=path),
            class_="actions",
        ),
    )


def _preview(path: str, topic: str, channel: str, to: str, found: Sequence[Move]) -> list[Markup]:
    if not to or not found:
        return []
    columns = ["NSQd Host", "Now At", "Then At", "Delivered Again", "Skipped", "Thrown Away"]
    rows = [
        [each.node, *map(number, (each.now, each.then, each.again, each.skipped, each.dropped))]
        for each in found
    ]
    dropped = sum(each.dropped for each in found)
    again = sum(each.again for each in found)
    waiting = sum(each.waiting for each in found)
    text = (
        f"On {plural(len(found), 'node')}. Delivered once more: {plural(again, 'message')}. Waiting"
    )
    text += f" then: {plural(waiting, 'message')}. Thrown away is what the channel holds now, with"
    text += f" those in flight and deferred: {plural(dropped, 'message')}; of these come again only"
    text += " those that lie behind the place."
    name = f"{topic}/{channel}"
    question = Question(f"Seek {name} to {to}?", text, "seek", "Seek", (("to", to),))
    return [table("What it means", columns, rows), question_box(path, question)]
