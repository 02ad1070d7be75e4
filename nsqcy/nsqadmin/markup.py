"""HTML made of elements: what is text is escaped, because nothing else can be put in.

tag("a", name, href=link)   ->  <a href="...">...</a>
"""

from collections.abc import Iterable
from html import escape
from typing import Union

Child = Union["Markup", str, int, None, Iterable["Child"]]
_VOID = frozenset({"br", "img", "input", "link", "meta"})


class Markup(str):
    """Text that is HTML already. Only `tag` and `page` make it."""

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


def page(head: Markup, body: Markup) -> bytes:
    """A document."""
    # Bytes of names that are not UTF-8 are surrogates.
    return f"<!doctype html>\n<html lang=en>{head}{body}</html>\n".encode("utf-8", "replace")
