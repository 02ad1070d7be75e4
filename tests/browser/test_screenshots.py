"""Take new screenshots for docs/ after a quarter of an hour of load."""

import io
import math
import time
from pathlib import Path
from typing import Any

import pytest

from nsqcy.testing.http_requests import eventually
from support.copies_with_admin import BUDGET, copies_with_admin
from support.etcd_process import needs_etcd
from support.loaded_cluster import lively, trouble

IMAGES = Path(__file__).parents[2] / "docs" / "images"
MAX_BYTES = 80_000  # maximum size of a screenshot, in bytes
COLOURS = 48
LONG = 15.5 * 60  # seconds: slightly longer than the shortest time frame

PICTURES = {
    "streams": ("/", "light", 1200),
    "topic": ("/topics/orders?range=15m", "dark", 1200),
    "channel": ("/topics/mails/sender?range=15m", "light", 390),
    "nodes": ("/nodes", "dark", 1200),
    "peek": ("/peek/refunds/bank?state=dead", "light", 1200),
    "policy": ("/policy/refunds/bank", "dark", 1200),
}


def waves() -> float:
    """Return a rate that rises and falls over time."""
    now = time.monotonic() / 60
    return 0.25 + 0.15 * math.sin(now) + 0.05 * math.sin(7 * now)


def small(picture: bytes) -> bytes:
    image = pytest.importorskip("PIL.Image")
    out = io.BytesIO()
    image.open(io.BytesIO(picture)).convert("RGB").quantize(COLOURS).save(out, "PNG", optimize=True)
    return out.getvalue()


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_pictures(browser: Any, tmp_path: Path) -> None:
    IMAGES.mkdir(exist_ok=True)
    with lively(tmp_path, pause=waves, history_interval="5s") as live, trouble(live):
        time.sleep(LONG)
        for name, (path, scheme, width) in PICTURES.items():
            take(browser, name, live.url + path, scheme, width)


@needs_etcd
@pytest.mark.soak
@pytest.mark.timeout(300)
def test_picture_of_copies(browser: Any, tmp_path: Path) -> None:
    """One of three nsqds is lost, so some groups have too few copies and others move."""
    with copies_with_admin(tmp_path) as cluster:
        for nsqd in cluster.nsqds[:2]:
            for number in range(200):
                nsqd.web.pub("orders", b"%d" % number * 100)
        cluster.nsqds[2].destroy()
        eventually(lambda: len(cluster.copies()["risks"]) >= 2, BUDGET)
        take(browser, "copies", f"http://127.0.0.1:{cluster.admin.http_port}/copies", "light", 1200)


def take(browser: Any, name: str, url: str, scheme: str, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 500}, color_scheme=scheme)
    page = context.new_page()
    page.goto(url)
    picture = small(page.screenshot(full_page=True))
    assert len(picture) < MAX_BYTES
    (IMAGES / f"nsqadmin-{name}.png").write_bytes(picture)
    context.close()
