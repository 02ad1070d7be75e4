"""The page that moves a channel to another place of its topic's log, with a preview of the effect.

Pure: functions of what was fetched.
"""

from collections.abc import Mapping, Sequence

from nsqcy.nsqadmin.cluster.answers import NodeAnswer, SeekEffect
from nsqcy.nsqadmin.html.elements import Markup, Question, join, notice, question_box, tag
from nsqcy.nsqadmin.html.formatting import number, plural
from nsqcy.nsqadmin.html.layout import Layout, trail
from nsqcy.nsqadmin.html.tables import table


def seek(
    layout: Layout,
    topic: str,
    channel: str,
    answers: Sequence[NodeAnswer],
    found: Sequence[SeekEffect],
    params: Mapping[str, str],
) -> list[Markup]:
    to = params.get("to", "")
    path = layout.link("seek", topic, channel)
    head = [trail(layout, topic, channel, "Seek"), tag("h1", f"Seek {topic}/{channel}")]
    if answers and all(each.is_missing for each in answers):
        return [*head, notice("No nsqd can seek: they are NSQ's, or of an older nsqcy.")]
    refused = [notice(f"{each.node}: {each.reason}.") for each in answers if not each.is_done]
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


def _preview(
    path: str, topic: str, channel: str, to: str, found: Sequence[SeekEffect]
) -> list[Markup]:
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
