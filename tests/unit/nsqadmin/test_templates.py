"""Templates: each compiles, text stays text, and every page has the same layout."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import UndefinedError

from nsqcy.cluster.connections import Connection
from nsqcy.cluster.discovery import Producer
from nsqcy.cluster.stats import (
    ChannelFigures,
    ChannelStats,
    ClientStats,
    CursorStats,
    TopicFigures,
    TopicStats,
)
from nsqcy.cluster.summaries import complete_summary
from nsqcy.nsqadmin.cluster.nodes import Clients, Node
from nsqcy.nsqadmin.cluster.view import Busiest
from nsqcy.nsqadmin.history.store import Subject
from nsqcy.nsqadmin.html.error_texts import explained
from nsqcy.nsqadmin.html.layout import Layout, View, not_found, render
from nsqcy.nsqadmin.html.location import Location
from nsqcy.nsqadmin.html.plots import Plots
from nsqcy.nsqadmin.html.tables import Heading, labelled
from nsqcy.nsqadmin.html.templates import environment
from nsqcy.nsqadmin.views import channels as channel_views
from nsqcy.nsqadmin.views import connections as connection_views
from nsqcy.nsqadmin.views import topics as views
from support.runs import runs
from support.strict_html import Element, read

LAYOUT = Layout("/b", True, "u")
NO_PLOTS = Plots(None, 0.0, 0.0)


def test_all_templates_are_compiled_before_the_first_request() -> None:
    found = environment()
    assert found.cache is not None
    compiled = {name for _, name in found.cache}
    assert compiled == set(found.list_templates()) >= {"layout.html", "topic.html", "login.html"}


def test_a_value_that_is_missing_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="lookupds"):
        render(LAYOUT, "t", View("lookup.html", {}))


def test_links() -> None:
    layout = Layout("/b", True)
    assert layout.link("topics", "a#ephemeral", "\udcff/..") == "/b/topics/a%23ephemeral/%FF%2F.."
    assert (layout.home, Layout("", True).home) == ("/b", "/")


def test_the_frame_of_a_page() -> None:
    text = render(Layout("", False), "Nodes", warning="a\n<b>", error="x\udcff")
    page = read(text)
    assert text.startswith(b"<!doctype html>")
    assert page.one("title").text == "Nodes - nsqadmin"
    assert page.one("a", **{"aria-current": "page"}).text == "Nodes"
    assert [each.text for each in page.one("div", role="status").all("p")] == ["a", "<b>"]
    assert page.one("div", role="alert").text == "x?"
    assert page.one("body").attributes["data-admin"] == "false"


def test_what_was_not_found() -> None:
    def text(code: str, about: Subject) -> str:
        page = read(render(LAYOUT, "t", not_found(code, about)))
        return "".join(each.text for each in page.all("section", **{"class": "lost"}))

    assert text("TOPIC_NOT_FOUND", Subject(topic="<t>")).startswith("No nsqd has a topic <t>.")
    assert text("CHANNEL_NOT_FOUND", Subject(topic="t", channel="c")).startswith("Topic t has no")
    assert text("NODE_NOT_FOUND", Subject(node="n:1")).startswith("nsqd n:1 is unknown.")
    assert text("INTERNAL_ERROR", Subject(topic="t")) == ""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("MSG_EMPTY", "A message needs a body (MSG_EMPTY)"),
        ("n:1: MSG_EMPTY\nn:2: down", "n:1: A message needs a body (MSG_EMPTY)\nn:2: down"),
        ("INVALID_LIMIT (allowed: 1 to 9)", "INVALID_LIMIT (allowed: 1 to 9)"),
        ("UNHEARD_OF", "UNHEARD_OF"),
        ("of topic MSG_EMPTY", "of topic MSG_EMPTY"),
        ("", ""),
    ],
)
def test_error_codes_have_sentences(text: str, shown: str) -> None:
    assert explained(text) == shown


MARKUP = st.text(alphabet="<>&\"'/=abi\u202e\n", max_size=12)


def pages(text: str) -> list[Element]:
    """Return the pages of a topic and a channel, with the text wherever a name may appear."""
    client = ClientStats(
        node=text,
        remote_address=text,
        client_id=text,
        hostname=text,
        user_agent=text,
        authed=True,
        auth_identity=text,
        auth_identity_url=f"http://{text}",
        topology_region=text,
        topology_zone=text,
        tls=True,
    )
    waiting = ChannelFigures(depth=3)
    channel = ChannelStats(text, text, text, text, waiting, clients=(client,))
    channel = channel._replace(nodes=(channel,))
    cursors = (CursorStats(text, text, overrun=True),)
    topic = TopicStats(text, text, text, TopicFigures(), {text: channel}, cursors=cursors)
    topic = topic._replace(nodes=(topic,))
    clients = Clients({}, 0.0)
    connection = Connection(client, text, text, {text: 1})
    location = Location("/t", {"ask": "delete", "sort": text, "q": text})
    found = Busiest([text], [(Node(Producer("n", 1, 2)), complete_summary([topic]))], [])
    chosen = views.choose(found, location, NO_PLOTS)
    shown = [
        views.streams(chosen, {text: topic}, location, NO_PLOTS),
        channel_views.channels({text: topic}, {}, 1, location, NO_PLOTS),
        connection_views.connections(
            [connection],
            clients,
            Location("/c", {}),
        ),
        views.topic(topic, location, NO_PLOTS),
        views.topic(topic, location, NO_PLOTS, origins=[(text, text)]),
        views.channel(topic, channel, clients, location, NO_PLOTS),
        views.channel(topic, channel, clients, location, NO_PLOTS, [(text, text)]),
    ]
    layout = Layout("/b", True, text)
    return [read(render(layout, text, each, warning=text, error=text)) for each in shown]


@settings(deadline=None, max_examples=runs(40))
@given(MARKUP)
def test_text_never_becomes_markup(text: str) -> None:
    """For any names and errors, a page has the same elements as with a plain name."""
    for page, plain in zip(pages(f"a{text}a"), pages("aa"), strict=True):
        assert count(page) == count(plain)


def count(page: Element) -> dict[str, int]:
    """Return the number of elements by name; a bar has as many paragraphs as its text has lines."""
    found: dict[str, int] = {}
    for each in walk(page):
        if each.name != "p":
            found[each.name] = found.get(each.name, 0) + 1
    return found


def walk(element: Element) -> list[Element]:
    below = [each for each in element.children if isinstance(each, Element)]
    return [*below, *(deeper for each in below for deeper in walk(each))]


def test_cells_have_their_headings_as_labels() -> None:
    headings = [Heading("Name"), Heading("A"), Heading('"B"')]
    cells = labelled("<th>0</th><td>0</td><td>10 <b>&lt;td&gt;</b></td>", headings)
    assert cells == (
        '<th>0</th><td data-label="A" class="zero">0</td>'
        '<td data-label="&#34;B&#34;">10 <b>&lt;td&gt;</b></td>'
    )
    assert labelled("<td>1</td><td>2</td>", headings[:2]).endswith('<td data-label="">2</td>')
