"""axe finds no violation on nsqadmin's pages, narrow and wide, light and dark."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from support.browser_visit import WIDTHS, Visit
from support.loaded_cluster import Lively, trouble
from support.nsqadmin_pages import pages

axe: Any = pytest.importorskip("axe_playwright_python.base")

# The widths show different elements; the schemes differ only in colours, whose rule takes most of
# the time. Most elements are in both widths.
LOOKS = list(zip(WIDTHS, ("dark", "light"), strict=True))
ALL_LOOKS = list(itertools.product(WIDTHS, ("dark", "light")))
# axe ignores hidden elements.
OPEN = "document.querySelectorAll('details').forEach((each) => { each.open = true })"
RUN = """async () => {
    const found = await axe.run({ resultTypes: ['violations'], preload: false });
    return found.violations.map(({ id, nodes }) => [id, nodes.map((node) => node.target)]);
}"""


@pytest.mark.early
@pytest.mark.parametrize(
    "looks", [LOOKS, pytest.param(ALL_LOOKS, marks=pytest.mark.soak)], ids=["some", "all"]
)
def test_no_page_has_a_violation(
    live: Lively, visit: Callable[..., Visit], looks: list[tuple[int, str]]
) -> None:
    visitor = visit(reduced_motion="reduce")
    page, found = visitor.page, []
    with trouble(live):
        for name, path in pages(live).items():
            page.goto(visitor.url + path)
            page.locator("#theme").wait_for(state="attached")  # scripts have run
            page.evaluate(OPEN)
            page.evaluate(axe.AXE_SCRIPT)
            for width, scheme in looks:
                page.set_viewport_size({"width": width, "height": 900})
                page.emulate_media(color_scheme=scheme)
                for rule, targets in page.evaluate(RUN):
                    found.append(f"{name} {width} {scheme}: {rule} {targets}")
    visitor.forgive("404")  # the not-found page
    assert found == []
