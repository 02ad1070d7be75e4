"""Takes the screenshots in docs/images/nsqadmin: every page, wide and narrow, light and dark.

The pages show half an hour of load, or the time in NSQADMIN_SCREENSHOT_MINUTES;
NSQADMIN_SCREENSHOT_PAGES selects some of them. Run it with
`make soak TESTS=tests/browser/test_screenshots.py`, and inspect the result.
"""

import io
import math
import os
import time
from pathlib import Path
from typing import Any

import pytest

from nsqcy.testing.http_requests import eventually
from nsqcy.users.hashes import hash_password
from support.copies_with_admin import copies_with_admin
from support.copying_nsqds import BUDGET
from support.etcd_process import needs_etcd
from support.loaded_cluster import lively, trouble
from support.nsqadmin_pages import pages
from support.nsqadmin_process import Admin
from support.nsqlookupd_process import Lookupd

IMAGES = Path(__file__).parents[2] / "docs" / "images" / "nsqadmin"
MAX_BYTES = 150_000  # maximum size of a screenshot, in bytes
COLOURS = 48
MINUTES = float(os.environ.get("NSQADMIN_SCREENSHOT_MINUTES", "31"))
PAGES = os.environ.get("NSQADMIN_SCREENSHOT_PAGES", "").split()
WIDTHS = 1440, 390
SCHEMES = "light", "dark"
CHEAP = 10  # hash cost that takes almost no time


def waves() -> float:
    """Return a rate that rises and falls over time."""
    now = time.monotonic() / 60
    return 0.25 + 0.15 * math.sin(now) + 0.05 * math.sin(7 * now)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_pictures(browser: Any, tmp_path: Path) -> None:
    with lively(tmp_path, pause=waves, history_interval="5s") as live, trouble(live):
        time.sleep(60 * MINUTES)
        for name, path in pages(live).items():
            if not PAGES or name in PAGES:
                take(browser, name, live.url + path)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_pictures_without_a_cluster(browser: Any, tmp_path: Path) -> None:
    users = tmp_path / "users.ini"
    password = hash_password("secret of anna", CHEAP)
    users.write_text(f"[user anna]\nrole = operate\npassword = {password}\n")
    with Lookupd() as lookupd:
        address = lookupd.http_address
        with Admin(lookupd_http_address=address, auth_file=users) as admin:
            take(browser, "login", f"http://127.0.0.1:{admin.http_port}/login")
        with Admin(lookupd_http_address=address) as admin:
            take(browser, "empty", f"http://127.0.0.1:{admin.http_port}/")


@needs_etcd
@pytest.mark.soak
@pytest.mark.timeout(300)
def test_pictures_of_copies(browser: Any, tmp_path: Path) -> None:
    """One of three nsqds is lost, so some groups have too few copies and others move."""
    with copies_with_admin(tmp_path) as cluster:
        for nsqd in cluster.nsqds[:2]:
            for number in range(200):
                nsqd.web.pub("orders", b"%d" % number * 100)
        cluster.nsqds[2].destroy()
        eventually(lambda: len(cluster.copies()["risks"]) >= 2, BUDGET)
        take(browser, "copies", f"http://127.0.0.1:{cluster.admin.http_port}/copies")


def take(browser: Any, name: str, url: str) -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    for width in WIDTHS:
        for scheme in SCHEMES:
            size = {"width": width, "height": 500}
            context = browser.new_context(viewport=size, color_scheme=scheme)
            page = context.new_page()
            page.goto(url)
            page.locator("#theme:visible").wait_for()  # scripts have run
            # The window is as tall as the page, so a bar at its bottom is at the end of the page.
            height = page.evaluate("document.documentElement.scrollHeight")
            page.set_viewport_size({"width": width, "height": height})
            picture = small(page.screenshot(full_page=True))
            assert len(picture) < MAX_BYTES, name
            (IMAGES / f"{name}-{width}-{scheme}.png").write_bytes(picture)
            context.close()


def small(picture: bytes) -> bytes:
    image = pytest.importorskip("PIL.Image")
    out = io.BytesIO()
    image.open(io.BytesIO(picture)).convert("RGB").quantize(COLOURS).save(out, "PNG", optimize=True)
    return out.getvalue()
