"""What pages about a topic or a channel begin with, and the links between them.

Pure.
"""

from nsqcy.nsqadmin.frame import Frame
from nsqcy.nsqadmin.markup import Child, Markup, tag
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
