"""What all pages have in common: the head, navigation, bars of warnings and errors, links between
pages of one topic or channel, and what stands there if it does not exist.

Pure.
"""

from dataclasses import dataclass
from urllib.parse import quote

from nsqcy import NSQ_VERSION, __version__
from nsqcy.nsqadmin.cluster.answers import CHANNEL_NOT_FOUND, NODE_NOT_FOUND, TOPIC_NOT_FOUND
from nsqcy.nsqadmin.history.store import Subject
from nsqcy.nsqadmin.html.elements import Child, Markup, crumbs, document, join, tag

NAVIGATION = (("/", "Streams"), ("/nodes", "Nodes"), ("/counter", "Counter"), ("/lookup", "Lookup"))


@dataclass(frozen=True)
class Layout:
    """`base` is what every path begins with, `is_admin` whether this user may act, `user` who has
    logged in, `version` which of its files a browser may have kept."""

    base: str
    is_admin: bool
    user: str = ""
    version: str = ""

    def link(self, *segments: str) -> str:
        """The path of a page; segments are escaped."""
        path = "/".join(
            quote(each.encode("utf-8", "surrogateescape"), safe="") for each in segments
        )
        return f"{self.base}/{path}"

    def file(self, name: str) -> str:
        """The path of a file for browsers."""
        return self.link("static", *([self.version] if self.version else []), name)

    @property
    def home(self) -> str:
        return self.base or "/"

    def page(
        self,
        title: str,
        *content: Child,
        warning: str = "",
        error: str = "",
        is_live: bool = False,
        refresh: int = 0,
    ) -> bytes:
        """is_live: a script keeps what is on it up to date. refresh: seconds after which it is
        loaded again where there is no script."""
        head = tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="color-scheme", content="light dark"),
            _without_scripts(refresh) if refresh else None,
            tag("title", f"{title} - nsqadmin" if title else "nsqadmin"),
            tag("link", rel="stylesheet", href=self.file("nsqadmin.css")),
            tag("link", rel="icon", href=self.file("favicon.svg"), type="image/svg+xml"),
            # The first one before anything is drawn: it says whether that is light or dark.
            tag("script", src=self.file("theme.js")),
            tag("script", type="module", src=self.file("nsqadmin.js")),
        )
        body = tag(
            "body",
            tag("a", "Skip to content", class_="skip", href="#content"),
            self._header(title),
            tag(
                "main",
                *(_bar("warning", warning), _bar("error", error), *content),
                id="content",
                tabindex=-1,
                data_live=is_live,
            ),
            data_admin="true" if self.is_admin else "false",
        )
        return document(head, body)

    def _header(self, title: str) -> Markup:
        links = [
            tag(
                "a",
                text,
                href=self.home if path == "/" else self.base + path,
                aria_current="page" if text == title else None,
            )
            for path, text in NAVIGATION
        ]
        version = tag("span", f"v{NSQ_VERSION}", class_="version", title=f"nsqcy {__version__}")
        home = tag("a", "NSQ", class_="brand", href=self.home)
        # For scripts, which show them if they run.
        state = tag("span", id="live", class_="live", role="status", hidden=True)
        theme = tag("button", id="theme", type="button", hidden=True)
        end = tag("div", state, theme, self._leave(), version, class_="end")
        return tag("header", tag("nav", home, *links, aria_label="Pages"), end)

    def _leave(self) -> Markup:
        """How to log out, for whoever is logged in."""
        if not self.user:
            return join()
        button = tag("button", f"Log out {self.user}")
        return tag("form", button, method="post", action=self.link("logout"), class_="leave")


def _without_scripts(refresh: int) -> Markup:
    return tag("noscript", tag("meta", http_equiv="refresh", content=refresh))


def _bar(kind: str, text: str) -> Markup:
    """Texts of several daemons stand on lines of their own."""
    if not text:
        return join()
    role = "alert" if kind == "error" else "status"
    return tag(
        "div", [tag("p", line) for line in text.split("\n")], class_=f"bar {kind}", role=role
    )


def further(layout: Layout, topic: str, channel: str = "") -> Markup:
    """Links to the other pages about it. Only users who may empty a queue see its messages."""
    names = (topic, channel) if channel else (topic,)
    links = [tag("a", "Policy", href=layout.link("policy", *names))]
    if layout.is_admin:
        links.insert(0, tag("a", "Messages", href=layout.link("peek", *names)))
    if layout.is_admin and channel:
        links.append(tag("a", "Seek", href=layout.link("seek", *names)))
    return tag("nav", links, class_="further", aria_label="More about it")


def trail(layout: Layout, topic: str, channel: str, page: str) -> Markup:
    """Where a further page is."""
    where: list[Child] = [tag("a", "Streams", href=layout.home)]
    where.append(tag("a", topic, href=layout.link("topics", topic)))
    if channel:
        where.append(tag("a", channel, href=layout.link("topics", topic, channel)))
    return crumbs(*where, page)


def not_found(layout: Layout, code: str, about: Subject) -> list[Markup]:
    """What was not found, and where to go from there; nothing for another error."""
    streams = tag("a", "All topics", href=layout.home)
    topic = tag("a", f"Topic {about.topic}", href=layout.link("topics", about.topic))
    if code == NODE_NOT_FOUND:
        what = f"has a topic {about.topic}" if about.topic else "is known"
        text = f"No nsqd {about.node} {what}."
        links = [topic] if about.topic else [tag("a", "All nodes", href=layout.link("nodes"))]
    elif code == CHANNEL_NOT_FOUND:
        text = f"Topic {about.topic} has no channel {about.channel}."
        links = [topic, streams]
    elif code == TOPIC_NOT_FOUND:
        text = f"No nsqd has a topic {about.topic}."
        links = [streams, tag("a", "Topics without an nsqd", href=layout.link("lookup"))]
    else:
        return []
    back = tag("nav", links, class_="further", aria_label="Where to go from here")
    return [tag("section", tag("p", text), back, class_="lost")]
