"""A browser and a cluster under load, shared by the tests of a module.

Playwright's event loop blocks its thread for all other asyncio loops, so the browser is closed at
the end of the module.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.browser_visit import BASE, PATIENCE, Visit
from support.loaded_cluster import Lively, lively

CHROMIUM = Path("/usr/bin/chromium")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lively]:
    """The load takes CPU time, so it ends with the module."""
    home = tmp_path_factory.mktemp("lively")
    with lively(home, base_path=BASE, http_client_request_timeout="2s") as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM.exists():
        pytest.skip(f"needs {CHROMIUM}")
    playwright.expect.set_options(timeout=PATIENCE)
    with playwright.sync_playwright() as started:
        # As root, Chromium does not start with a sandbox. No machine of the tests has a GPU.
        words = ["--no-sandbox", "--disable-gpu", "--in-process-gpu"]
        found = started.chromium.launch(executable_path=str(CHROMIUM), args=words)
        yield found
        found.close()


@pytest.fixture
def visit(browser: Any, request: pytest.FixtureRequest) -> Iterator[Callable[..., Visit]]:
    """Factory of visits with a new browser profile: `visit(width=390)`. The test fails if a page
    has errors. `url` selects an nsqadmin other than that of the `live` cluster."""
    visits = []

    def begin(width: int = 1440, url: str = "", **options: Any) -> Visit:
        url = url or request.getfixturevalue("live").url
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        context.set_default_timeout(PATIENCE)
        visits.append(Visit(context.new_page(), url + BASE))
        return visits[-1]

    yield begin
    wrong = [each for one in visits for each in one.wrong]
    for each in visits:
        each.page.context.close()
    assert wrong == []
