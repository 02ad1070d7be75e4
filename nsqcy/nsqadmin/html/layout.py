"""What every page of nsqadmin has: links, questions before data is destroyed, and the frame.

Pure: templates/layout.html draws it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote, urlencode

from nsqcy import NSQ_VERSION, __version__
from nsqcy.nsqadmin.cluster.answers import CHANNEL_NOT_FOUND, NODE_NOT_FOUND, TOPIC_NOT_FOUND
from nsqcy.nsqadmin.history.store import Subject
from nsqcy.nsqadmin.html import templates


@dataclass(frozen=True)
class Layout:
    """base: prefix of every path. is_admin: whether the user may act. user: name of the user who is
    logged in. version: of the static files, which browsers may cache."""

    base: str
    is_admin: bool
    user: str = ""
    version: str = ""

    @property
    def nsq_version(self) -> str:
        return NSQ_VERSION

    @property
    def own_version(self) -> str:
        return __version__

    @property
    def home(self) -> str:
        return self.base or "/"

    def link(self, *segments: str) -> str:
        """Return the path of a page; segments are escaped."""
        path = "/".join(
            quote(each.encode("utf-8", "surrogateescape"), safe="") for each in segments
        )
        return f"{self.base}/{path}"

    def queue(self, page: str, topic: str, channel: str = "") -> str:
        """Return the path of a page about a topic or channel."""
        return self.link(page, topic, *([channel] if channel else []))

    def asking(self, path: str, action: str, **fields: str) -> str:
        """Return the link to the page at `path` with the question before an action."""
        return f"{path}?{urlencode({'ask': action, **fields})}#question"

    def file(self, name: str) -> str:
        """Return the path of a static file."""
        return self.link("static", *([self.version] if self.version else []), name)


class View(NamedTuple):
    """The content of a page: a template, and the values that it shows."""

    template: str
    values: Mapping[str, object]


NOTHING = View("nothing.html", {})


def render(
    layout: Layout,
    title: str,
    view: View = NOTHING,
    *,
    warning: str = "",
    error: str = "",
    is_live: bool = False,
    refresh: int = 0,
) -> bytes:
    """Return a page. is_live: a script keeps it up to date. refresh: seconds after which a browser
    without scripts loads it again."""
    return templates.render(
        view.template,
        layout=layout,
        title=title,
        bars=[("warning", warning), ("error", error)],
        is_live=is_live,
        refresh=refresh,
        **view.values,
    )


@dataclass(frozen=True)
class Question:
    """The question before something is destroyed, and the form that does it."""

    title: str
    text: str
    action: str
    verb: str  # label of the button
    fields: tuple[tuple[str, str], ...] = ()


def not_found(code: str, about: Subject) -> View:
    """What was not found, and where to go from there; nothing for other errors."""
    if code in (NODE_NOT_FOUND, CHANNEL_NOT_FOUND, TOPIC_NOT_FOUND):
        return View("not_found.html", {"code": code, "about": about})
    return NOTHING
