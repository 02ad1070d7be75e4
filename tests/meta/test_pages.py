"""Generated tables in the documentation are up to date."""

from typing import Any

import pytest

# The tables of Spark's options need the packages that a job needs.
pages: Any = pytest.importorskip("release.pages")
DOCS, MARKED, PAGES = pages.DOCS, pages.MARKED, pages.PAGES
rewritten, table = pages.rewritten, pages.table


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_up_to_date(page: str) -> None:
    text = (DOCS / page).read_text()
    assert rewritten(text, PAGES[page]) == text, f"docs/{page} is stale: run `make conf`"


def test_no_other_page_has_a_block() -> None:
    marked = {
        str(path.relative_to(DOCS))
        for path in [*DOCS.rglob("*.md"), DOCS / "../README.md"]
        if MARKED.search(path.read_text())
    }
    assert marked == PAGES.keys()


def test_a_block_is_replaced_and_the_rest_stays() -> None:
    text = "a\n<!-- begin x y -->\nold\n<!-- end x y -->\nb\n"
    once = rewritten(text, {"x y": lambda: "new\n"})
    assert once == "a\n<!-- begin x y -->\n\nnew\n\n<!-- end x y -->\nb\n"
    assert rewritten(once, {"x y": lambda: "new\n"}) == once


@pytest.mark.parametrize("names", [[], ["x"], ["x", "x", "y"], ["x", "z"]])
def test_each_block_has_to_be_there_once(names: list[str]) -> None:
    text = "".join(f"<!-- begin {name} -->\n<!-- end {name} -->\n" for name in names)
    with pytest.raises(ValueError, match="expected"):
        rewritten(text, {"x": str, "y": str})


def test_a_table() -> None:
    assert table("a, b c", [["1", "x|y"]]) == "| a | b c |\n| --- | --- |\n| 1 | x\\|y |\n"
