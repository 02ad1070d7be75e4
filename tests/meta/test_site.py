"""The documentation site builds without warnings, and contains everything public."""

import html
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqcy.config.options import OptionTable
from nsqcy.logging.events import EVENTS
from nsqcy.metrics.families import BY_DAEMON
from nsqcy.nsqadmin.options import NSQADMIN
from nsqcy.nsqd.options import NSQD
from nsqcy.nsqlookupd.options import NSQLOOKUPD
from support.nsqd_process import environment

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
MODULES = ("nsqcy.client", "nsqcy.client.aio", "nsqcy.spark", "nsqcy.testing")
# Errors of these modules are documented under nsqcy.errors. Option types are internal.
UNSHOWN = {"nsqcy.testing.Option", "nsqcy.testing.DaemonError"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        env=environment() | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stdout + done.stderr
    yield folder


def text_of(page: Path) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", page.read_text()))


def test_every_public_name_is_there(site: Path) -> None:
    pages = [each.read_text() for each in (site / "reference" / "python").glob("*.html")]
    shown = {found for page in pages for found in re.findall(r'id="(nsqcy[\w.]+)"', page)}
    names = {name.rpartition(".")[2] for name in shown}
    missing = []
    for module in MODULES:
        public = set(importlib.import_module(module).__all__)
        missing += [f"{module}.{name}" for name in sorted(public - names)]
    assert sorted(set(missing) - UNSHOWN) == []


@pytest.mark.parametrize("table", [NSQD, NSQLOOKUPD, NSQADMIN], ids=lambda table: table.daemon)
def test_every_option_is_there(site: Path, table: OptionTable) -> None:
    text = text_of(site / "CONFIG.html")
    assert [name for name in table.by_name if f"--{table.by_name[name].flag}" not in text] == []


def test_every_metric_and_event_is_there(site: Path) -> None:
    metrics, logs = text_of(site / "METRICS.html"), text_of(site / "LOGS.html")
    families = [each for found in BY_DAEMON.values() for each in found]
    assert [each.sample for each in families if each.sample not in metrics] == []
    assert [each.name for each in EVENTS if each.name not in logs] == []
