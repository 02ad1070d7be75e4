"""Common parts of every page: links, confirmation questions, and the frame.

Pure: templates/layout.html draws them.
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
    """Values common to all pages in a request. base: prefix of every path. is_admin: whether the
    user may act. user: name of the logged-in user. version: version of the static files, which
    browsers cache. has_copies: whether some nsqd has groups of copies."""

    base: str
    is_admin: bool
    user: str = ""
    version: str = ""
    has_copies: bool = False

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
        """Return the path to a page; segments are escaped."""
        path = "/".join(
            quote(each.encode("utf-8", "surrogateescape"), safe="") for each in segments
        )
        return f"{self.base}/{path}"

    def queue(self, page: str, topic: str, channel: str = "") -> str:
        """Return the path to a page about a topic or channel."""
        return self.link(page, topic, *([channel] if channel else []))

    def asking(self, path: str, action: str, **fields: str) -> str:
        """Return the link to the page at `path` that shows an action's confirmation question."""
        return f"{path}?{urlencode({'ask': action, **fields})}#question"

    def file(self, name: str) -> str:
        """Return the path to a static file."""
        return self.link("static", *([self.version] if self.version else []), name)


class View(NamedTuple):
    """The content of a page: a template and its values."""

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
    is_current: bool = True,
    refresh: int = 0,
) -> bytes:
    """Return a page. is_live: a script keeps it up to date. is_current: it shows the cluster's
    present state. refresh: seconds until a browser without scripts reloads it."""
    return templates.render(
        view.template,
        layout=layout,
        title=title,
        bars=[("warning", warning), ("error", error)],
        is_live=is_live,
        is_current=is_current,
        refresh=refresh,
        **view.values,
    )


@dataclass(frozen=True)
class Question:
    """A confirmation question before a destructive action, and the form that runs it. typed: the
    name that the user must type; empty if the button suffices. limit: label of a field for the
    maximum number of messages; empty if there is none."""

    title: str
    text: str
    action: str
    verb: str  # label of the button
    fields: tuple[tuple[str, str], ...] = ()
    typed: str = ""
    limit: str = ""


def not_found(code: str, about: Subject) -> View:
    """Return a page that names the missing item and has links; an empty page for other errors."""
    if code in (NODE_NOT_FOUND, CHANNEL_NOT_FOUND, TOPIC_NOT_FOUND, "NOT_FOUND"):
        return View("not_found.html", {"code": code, "about": about})
    return NOTHING
