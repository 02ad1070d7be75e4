"""HTML pages, parsed strictly for tests, because a browser would repair anything."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"br", "img", "input", "link", "meta"}


@dataclass
class Element:
    name: str
    attributes: dict[str, str]
    children: list["Element | str"] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Return all text in an element, with spaces as a browser shows them."""
        pieces = [each if isinstance(each, str) else each.text for each in self.children]
        return " ".join("".join(pieces).split())

    @property
    def elements(self) -> list["Element"]:
        return [each for each in self.children if isinstance(each, Element)]

    def all(self, name: str, /, **attributes: str) -> list["Element"]:
        """Return the elements with this name and these attributes, in order."""
        found = []
        for each in self.children:
            if isinstance(each, Element):
                wanted = attributes.items() <= each.attributes.items()
                found += [each] if each.name == name and wanted else []
                found += each.all(name, **attributes)
        return found

    def one(self, name: str, /, **attributes: str) -> "Element":
        (found,) = self.all(name, **attributes)
        return found

    @property
    def fields(self) -> dict[str, str]:
        """Return the fields that a form sends when its only button is pressed."""
        given = {each.attributes["name"]: each.attributes["value"] for each in self.all("input")}
        button = self.one("button").attributes
        return given | {button["name"]: button["value"]}

    def table(self, caption: str) -> list[list[str]]:
        """Return the cell texts of a table, row by row."""
        for table in self.all("table"):
            if table.all("caption")[0].text == caption:
                return [
                    [cell.text for cell in row.elements]
                    for part in table.elements
                    for row in part.elements
                    if row.name == "tr"  # rows of the table itself, not of tables in its cells
                ]
        raise AssertionError(f"no table {caption}: {self.text}")


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.root = Element("", {})
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        assert len(element.attributes) == len(attrs), f"<{tag}> has a duplicate attribute"
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().name == tag, f"</{tag}> closes a different element"

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def read(page: bytes | str) -> Element:
    reader = _Reader()
    reader.feed(page.decode() if isinstance(page, bytes) else page)
    reader.close()
    assert reader.open == [reader.root], "an element is not closed"
    return reader.root
