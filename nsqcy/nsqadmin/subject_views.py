"""What pages about a topic or a channel begin with, the links between them, and what stands there
instead if there is no such thing.

Pure.
"""

from nsqcy.nsqadmin.frame import Frame
from nsqcy.nsqadmin.history_rates import Subject
from nsqcy.nsqadmin.markup import Child, Markup, tag
from nsqcy.nsqadmin.saying import CHANNEL_NOT_FOUND, NODE_NOT_FOUND, TOPIC_NOT_FOUND
from nsqcy.nsqadmin.tables import crumbs


def further(frame: Frame, topic: str, channel: str = "") -> Markup:
    """Links to the other pages about it. What is in a queue only those see who may empty it."""
    names = (topic, channel) if channel else (topic,)
    links = [tag("a", "Policy", href=frame.link("policy", *names))]
    if frame.is_admin:
        links.insert(0, tag("a", "Messages", href=frame.link("peek", *names)))
    if frame.is_admin and channel:
        links.append(tag("a", "Seek", href=frame.link("seek", *names)))
    return tag("nav", links, class_="further", aria_label="More about it")


def trail(frame: Frame, topic: str, channel: str, page: str) -> Markup:
    """Where a further page is."""
    where: list[Child] = [tag("a", "Streams", href=frame.home)]
    where.append(tag("a", topic, href=frame.link("topics", topic)))
    if channel:
        where.append(tag("a", channel, href=frame.link("topics", topic, channel)))
    return crumbs(*where, page)


def lost(frame: Frame, code: str, about: Subject) -> list[Markup]:
    """What was not found, and where to go from there; nothing for another error."""
    streams = tag("a", "All topics", href=frame.home)
    topic = tag("a", f"Topic {about.topic}", href=frame.link("topics", about.topic))
    if code == NODE_NOT_FOUND:
        what = f"has a topic {about.topic}" if about.topic else "is known"
        text = f"No nsqd {about.node} {what}."
        links = [topic] if about.topic else [tag("a", "All nodes", href=frame.link("nodes"))]
    elif code == CHANNEL_NOT_FOUND:
        text = f"Topic {about.topic} has no channel {about.channel}."
        links = [topic, streams]
    elif code == TOPIC_NOT_FOUND:
        text = f"No nsqd has a topic {about.topic}."
        links = [streams, tag("a", "Topics without an nsqd", href=frame.link("lookup"))]
    else:
        return []
    back = tag("nav", links, class_="further", aria_label="Where to go from here")
    return [tag("section", tag("p", text), back, class_="lost")]
