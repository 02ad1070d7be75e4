"""HTML elements, and the small parts that all pages are made of: crumbs, notices, forms, questions.

Text is escaped, because nothing else can be put in:

tag("a", name, href=link)   ->  <a href="...">...</a>
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple, Union
from urllib.parse import urlencode

Child = Union["Markup", str, int, None, Iterable["Child"]]
_VOID = frozenset({"br", "img", "input", "link", "meta"})


class Markup(str):
    """Text that is HTML already. Only `tag` and `document` make it."""

    __slots__ = ()


def tag(name: str, /, *children: Child, **attributes: str | int | bool | None) -> Markup:
    """An element. `class_` is its class; True is an attribute without a value, and False and None
    are none."""
    opening = name + "".join(_attribute(each, value) for each, value in attributes.items())
    if name in _VOID:
        return Markup(f"<{opening}>")
    return Markup(f"<{opening}>{join(*children)}</{name}>")


def join(*children: Child) -> Markup:
    """Pieces, one after the other."""
    return Markup("".join(map(_html, children)))


def _html(child: Child) -> str:
    if isinstance(child, Markup):
        return child
    if child is None:
        return ""
    if isinstance(child, str | int):
        return escape(str(child))
    return join(*child)


def _attribute(name: str, value: str | int | bool | None) -> str:
    name = name.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'


def document(head: Markup, body: Markup) -> bytes:
    """A document."""
    # Bytes of names that are not UTF-8 are surrogates.
    return f"<!doctype html>\n<html lang=en>{head}{body}</html>\n".encode("utf-8", "replace")


class Cell(NamedTuple):
    """What is shown, and what it is sorted by."""

    shown: Child
    value: float | str


Row = Sequence[Child | Cell]
Fields = Sequence[tuple[str, str]]


def crumbs(*parts: Child) -> Markup:
    pieces = [tag("li", each) for each in parts]
    return tag("nav", tag("ol", pieces), class_="crumbs", aria_label="Where this is")


# Forms


@dataclass(frozen=True)
class Question:
    """The question before something is destroyed, and the form that does it."""

    title: str
    text: str
    action: str
    verb: str  # what the button says
    fields: tuple[tuple[str, str], ...] = ()


def form(
    path: str, action: str, label: str, fields: Fields = (), *, danger: bool = False
) -> Markup:
    """A button that does something at once."""
    hidden = [tag("input", type="hidden", name=name, value=value) for name, value in fields]
    kind = "danger" if danger else None
    button = tag("button", label, name="action", value=action, class_=kind)
    return tag("form", hidden, button, method="post", action=path)


def ask(path: str, label: str, action: str, title: str = "", **fields: str) -> Markup:
    """A button that asks first: it leads to the same page, with the question."""
    query = urlencode({"ask": action, **fields})
    href = f"{path}?{query}#question"
    return tag("a", label, class_="button danger", href=href, title=title or None)


def question_box(path: str, question: Question | None) -> Markup:
    if question is None:
        return join()
    buttons = [
        form(path, question.action, question.verb, question.fields, danger=True),
        tag("a", "Cancel", class_="button", href=path),
    ]
    return tag(
        "section",
        tag("h2", question.title, id="asked"),
        tag("p", question.text),
        tag("div", buttons, class_="actions"),
        id="question",
        class_="question",
        aria_labelledby="asked",
    )


def notice(*text: Child) -> Markup:
    return tag("p", *text, class_="notice")
