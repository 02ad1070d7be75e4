"""axe finds no violation on nsqadmin's pages, narrow and wide, light and dark."""

from collections.abc import Callable
from typing import Any

import pytest

from support.browser_visit import WIDTHS, Visit
from support.loaded_cluster import Lively, trouble
from support.nsqadmin_pages import pages

axe: Any = pytest.importorskip("axe_playwright_python.sync_playwright")

# The widths show different elements; the schemes differ only in colours.
LOOKS = (WIDTHS[0], "light"), (WIDTHS[1], "light"), (WIDTHS[1], "dark")
# axe ignores hidden elements.
OPEN = "document.querySelectorAll('details').forEach((each) => { each.open = true })"


@pytest.mark.early
def test_no_page_has_a_violation(live: Lively, visit: Callable[..., Visit]) -> None:
    visitor, checker = visit(reduced_motion="reduce"), axe.Axe()
    page, found = visitor.page, []
    with trouble(live):
        for name, path in pages(live).items():
            page.goto(visitor.url + path)
            page.locator("#theme").wait_for(state="attached")  # scripts have run
            page.evaluate(OPEN)
            for width, scheme in LOOKS:
                page.set_viewport_size({"width": width, "height": 900})
                page.emulate_media(color_scheme=scheme)
                for each in checker.run(page).response["violations"]:
                    targets = [node["target"] for node in each["nodes"]]
                    found.append(f"{name} {width} {scheme}: {each['id']} {targets}")
    visitor.forgive("404")  # the page not-found
    assert found == []
