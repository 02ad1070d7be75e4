"""Commands in the documents work on a machine where no other command has been run.

A block marked for testing (`tests/support/doc_examples.py`) is run with separate, empty daemons for
each page: an nsqd registered with an nsqlookupd, and an nsqadmin if the page uses one. Their ports
replace the usual ones. The blocks of a page run in order; no other test uses the daemons.
"""

import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from xml.etree import ElementTree

import pytest

from conftest import Starter, one_worker
from nsqcy.testing.http_requests import eventually
from support.doc_examples import Reader, blocks
from support.nsqadmin_process import Admin
from support.nsqd_process import environment
from support.nsqlookupd_process import Lookupd
from support.package_order import ROWS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# The test of a page that starts its own daemons is in tests/daemon.
TESTED = [
    page for page in PAGES if blocks(page.read_text()) and not blocks(page.read_text(), "daemon")
]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)")


@pytest.mark.slow
@one_worker
@pytest.mark.parametrize("page", TESTED, ids=lambda page: page.stem)
def test_what_it_says_to_type(page: Path, nsqd: Starter, tmp_path: Path) -> None:
    if not shutil.which("curl"):
        pytest.skip("curl is not installed")
    text = page.read_text()
    with ExitStack() as stack:
        lookupd = stack.enter_context(Lookupd())
        daemon = nsqd(lookupd_tcp_address=lookupd.tcp_address, broadcast_address="127.0.0.1")
        eventually(lookupd.nodes)
        ports = {4150: daemon.tcp_port, 4151: daemon.http_port}
        ports |= {4160: lookupd.tcp_port, 4161: lookupd.http_port}
        if ":4171" in text:
            admin = Admin(lookupd_http_address=lookupd.http_address)
            ports[4171] = stack.enter_context(admin).http_port
        assert daemon.web.get("/stats", format="json").json()["topics"] == []
        assert lookupd.web.get("/topics").json()["topics"] == []
        reader = Reader(tmp_path, ports=ports)
        for block in blocks(text):
            reader.type(block)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["CLIENT", "TESTING"])
def test_tests_that_it_shows_pass(page: str, tmp_path: Path) -> None:
    shown = blocks((ROOT / "docs" / f"{page}.md").read_text(), "pytest")
    assert shown
    for number, block in enumerate(shown):
        (tmp_path / f"test_page{number}.py").write_text(block.text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "nsqcy.testing.plugin", str(tmp_path)]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment() | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


# Blocks that no test runs as they are, by page and first words, with the reason.
MACHINE = "sets up the machine, or runs a daemon that the test starts"
BEFORE = "the program before a move needs the other broker"
NAMES = "names the reader's own hosts and files"
LATER = "example with data that the reader does not have yet; tests/pipeline runs the job"
UNTYPED = {
    ("RELEASING", "sha256sum"): NAMES,
    ("index", "nsqcy up"): MACHINE,
    ("from-nsq", "nsqd --data-path"): NAMES,
    ("README", "git clone"): NAMES,
    ("CLIENT", "NSQCY_TEST_NSQD="): "runs tests of this tree with another broker",
    ("DOCTOR", "nsqcy doctor"): NAMES,
    ("INSTALL", "docker build"): MACHINE,
    ("INSTALL", "docker compose"): MACHINE,
    ("INSTALL", "git clone"): NAMES,
    ("INSTALL", "helm install"): MACHINE,
    ("INSTALL", "kubectl apply"): MACHINE,
    ("INSTALL", "python3 -m venv"): MACHINE,
    ("INSTALL", "systemctl enable"): MACHINE,
    ("LOADTEST", ""): "runs for minutes; tests in tests/unit/loadtest read its flags",
    ("NSQADMIN", "nsqcy up"): MACHINE,
    ("NSQADMIN", "nsqadmin --lookupd-http-address"): NAMES,
    ("NSQADMIN", "nsqcy passwd"): NAMES,
    ("PIPELINE", "nsqcy-pipeline"): LATER,
    ("PIPELINE", "nsqd --retention-time"): LATER,
    ("PIPELINE", "pip install"): MACHINE,
    ("PIPELINE", "spark-submit"): NAMES,
    ("SECURITY", "nsqcy passwd"): NAMES,
    ("SPARK", "from nsqcy.spark import register"): "typed in the quick start",
    ("SPARK", "from nsqcy.spark.failures"): "examples/spark_json.py has these lines",
    ("SPARK", "from pyspark.sql.functions"): "tests/spark/test_session.py runs it",
    ("SPARK", "def publish(batch, number):"): "tests/spark/test_session.py runs it",
    ("SPARK", "pip install"): MACHINE,
    ("SPARK", "python -m nsqcy.spark"): NAMES,
    ("service", "cp /opt/nsqcy"): MACHINE,
    ("celery", "app = Celery("): "examples/celery_app.py has this line",
    ("celery", "app.conf.broker_transport_options"): NAMES,
    ("celery", "app.conf.broker_url"): NAMES,
    ("celery", "from nsqcy.integrations.celery import"): "test_celery_options.py has it",
    ("celery", "nsq_to_nsq"): "tests/integrations/test_celery_dead_letters.py runs it",
    ("celery", "send_mail.apply_async"): "tests/integrations/test_celery_options.py has such calls",
    ("celery", "curl"): "tests/integrations/test_celery_dead_letters.py sends the requests",
    ("celery", "from nsqcy.integrations.celery.dead"): "test_celery_dead_letters.py has it",
    ("celery", "from ray import serve"): "needs Ray, which was tried by hand",
    ("celery", "import nsqcy.integrations.celery"): "examples/celery_app.py has this line",
    ("celery", "pip install"): MACHINE,
    ("airflow-prefect", "from airflow"): "needs Airflow",
    ("airflow-prefect", "from prefect"): "needs Prefect",
    ("airflow-prefect", "def start("): "needs Airflow, or Prefect",
    ("django", "# shop/consumers.py"): "tests/support/django_shop has such a module",
    ("django", "INSTALLED_APPS"): "tests/support/django_shop has such settings",
    ("django", "class OrderTest"): "tests/integrations/test_django.py has it",
    ("django", "from nsqcy.integrations.django"): "tests/integrations/test_django.py has it",
    ("django", "pip install"): MACHINE,
    ("fastapi", "@asynccontextmanager"): "tests/integrations/test_fastapi.py has it",
    ("fastapi", "app.dependency_overrides"): "tests/integrations/test_fastapi.py has it",
    ("fastapi", "async def create_order"): "tests/integrations/test_fastapi.py has it",
    ("fastapi", "class Order(BaseModel):"): "tests/integrations/test_fastapi.py has it",
    ("fastapi", "nsq = NsqLifespan("): NAMES,
    ("fastapi", "pip install"): MACHINE,
    ("dramatiq", 'broker = NsqBroker("127'): "examples/dramatiq_app.py has this line",
    ("dramatiq", "broker = NsqBroker(\n"): "tests/integrations/test_dramatiq.py has the options",
    ("dramatiq", "nsq_to_nsq"): "tests/integrations/test_dramatiq_broker.py runs it",
    ("dramatiq", "pip install"): MACHINE,
    ("dramatiq", "send_mail.send"): "tests/integrations/test_dramatiq_broker.py has it",
    ("dramatiq", "reminder ="): "tests/integrations/test_dramatiq_broker.py has it",
    ("faststream", "async with TestNsqBroker"): "tests/integrations/test_faststream.py has it",
    ("faststream", "pip install"): MACHINE,
    ("flask", "pip install"): MACHINE,
    ("from-other-brokers", "import boto3"): BEFORE,
    ("from-other-brokers", "import pika"): BEFORE,
    ("from-redis", "app = Celery("): "examples/celery_app.py has such lines",
    ("from-redis", "from arq"): BEFORE,
    ("from-redis", "import json\n\nimport redis"): BEFORE,
    ("from-redis", "import redis"): BEFORE,
    ("several-nsqds", "producer = Producer("): NAMES,
    ("taskiq", "pip install"): MACHINE,
    ("taskiq", 'broker = NsqBroker("127.0.0.1:4150", headers'): "test_taskiq_broker.py has it",
    ("taskiq", 'broker = NsqBroker("127'): "examples/taskiq_app.py has this line",
    ("taskiq", "broker = NsqBroker(\n"): "tests/integrations/test_taskiq_broker.py has the options",
    ("taskiq", "source = NsqScheduleSource"): "tests/integrations/test_taskiq_broker.py has it",
    ("worker", "mkdir -p data"): MACHINE,
    ("testing", "pip download"): "needs Redis, and takes 20 minutes",
    ("tracing", "import sentry_sdk"): "needs the SDK of Sentry",
    ("tracing", "pip install"): MACHINE,
}
ELSEWHERE = {
    "quick-start": ["PIPELINE", "SPARK"],
    "pytest": ["CLIENT", "TESTING"],
    "cluster": ["REPLICATION"],
    "daemon": ["REPLICATION", "tutorial"],
    "kill": ["REPLICATION", "tutorial"],
    "stop": ["tutorial"],
    "until-ctrl-c": ["tutorial"],
    "worker.py": ["tutorial"],
}
FENCE = re.compile(r"^```(?:sh|python|console) ?(\S*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def reason_of(page: Path, text: str) -> tuple[str, str] | None:
    """Return the key of the reason why a block is not run, or None."""
    for stem, words in UNTYPED:
        if page.stem == stem and text.startswith(words):
            return stem, words
    return None


def test_every_block_is_typed_or_has_a_reason() -> None:
    used, missing = set(), []
    others = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for page in PAGES:
        for word, text in FENCE.findall(page.read_text()):
            reason = None if word else reason_of(page, text)
            used.add(reason)
            # tests/examples runs the example files.
            typed = word in ("test", "example") or page.stem in ELSEWHERE.get(word, [])
            on_a_host = page.parent.name == "runbooks" and f'"{page.stem}"' in others
            systemd = page.stem == "INSTALL" and "sysusers" in text  # tests/daemon/test_nodes.py
            if not (typed or reason or on_a_host or systemd):
                missing.append(f"{page.name}: {text.splitlines()[0]}")
    assert missing == []
    assert UNTYPED.keys() - used == set()


POLICY_FILES = [page for page in PAGES if "```ini\n[topic" in page.read_text()]


@pytest.mark.parametrize("page", POLICY_FILES, ids=lambda page: page.stem)
def test_policies_that_it_shows_are_valid(page: Path, tmp_path: Path) -> None:
    shown = re.findall(r"^```ini\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    for number, text in enumerate(shown):
        path = tmp_path / f"{number}.ini"
        path.write_text(text)
        command = [sys.executable, "-m", "nsqcy", "config", "check", str(path)]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_is_tried() -> None:
    assert ROOT / "README.md" in TESTED


def test_the_readme_is_short_and_counts_the_differences_from_nsq() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    text += (ROOT / "docs/index.md").read_text()
    (count,) = set(re.findall(r"about (\d+) \[?deliberate differences", text))
    heads = r"^\| case \| NSQ \| nsqcy \| why \|\n.*\n((?:\|.*\n)+)"
    tables = re.findall(heads, (ROOT / "docs/COMPATIBILITY.md").read_text(), re.MULTILINE)
    assert round(sum(len(table.splitlines()) for table in tables), -2) == int(count)


def test_installing_is_described_in_one_place() -> None:
    """No package index has nsqcy, so a page that installs an extra must link to the installation
    instructions."""
    for page in PAGES:
        text = page.read_text()
        if page.parent.name != "runbooks":
            assert not re.search(r"pip install \"?nsqcy(?!\[)", text), page
        if 'pip install "nsqcy[' in text and page.name != "INSTALL.md":
            assert "INSTALL.md#with-pip" in text, page


LINKED = [*sorted(ROOT.glob("*.md")), *PAGES[1:], ROOT / "examples" / "README.md"]


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target, anchor in LINK.findall(page.read_text()):
        path = page.parent / target if target else page
        if not path.exists() or (anchor and anchor not in anchors(path.read_text())):
            broken.append(f"{target}#{anchor}")
    assert broken == []


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub derives from the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


PICTURES = sorted((ROOT / "docs" / "images").rglob("*.svg"))


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.stem)
def test_a_picture_has_a_title_and_colours_for_dark_pages(picture: Path) -> None:
    text = picture.read_text()
    root = ElementTree.fromstring(text)
    assert root.findtext("{http://www.w3.org/2000/svg}title")
    assert "prefers-color-scheme: dark" in text and "http" not in text.replace("http://www.w3", "")


INTERNALS = [ROOT / "docs" / "ARCHITECTURE.md", *sorted((ROOT / "docs/internals").glob("*.md"))]
SOURCE = re.compile(r"`((?:\w+/)+\w+(?:\.\w+)?)`")
MODULE_ROW = re.compile(r"^\| `([\w/]+)` \|", re.MULTILINE)


@pytest.mark.parametrize("page", INTERNALS, ids=lambda page: page.stem)
def test_source_files_that_it_names_exist(page: Path) -> None:
    text = page.read_text()
    named = set(SOURCE.findall(text))
    for table in text.split("| module | responsibility |")[1:]:
        rows = MODULE_ROW.findall(table.partition("\n\n")[0])
        named |= {row if "/" in row else f"{page.stem}/{row}" for row in rows}
    assert sorted(name for name in named if not is_source(name)) == []


def is_source(name: str) -> bool:
    folders = (ROOT, ROOT / "nsqcy", ROOT / "cext" / "nsqcy", ROOT / "nsqcy" / "nsqd")
    endings = ("", ".py", ".pyx", ".pxd")
    return any((folder / f"{name}{end}").exists() for folder in folders for end in endings)


def test_the_architecture_page_has_the_table_of_packages() -> None:
    page = INTERNALS[0].read_text()
    assert "\n".join(ROWS[:-1]).removeprefix("nsqcy ") in page


ATTACKS = ("no token", "a wrong token", "outside the pattern", "slow-loris over TCP")
ATTACKS += ("slow-loris over HTTP", "decompression bomb", "huge IDENTIFY", "path traversal")
ATTACKS += ("header smuggling", "flood of headers", "CSRF", "logs")


def test_every_attack_names_its_test() -> None:
    page = (ROOT / "docs" / "SECURITY.md").read_text()
    table = page.partition("| attack | what happens | test |")[2].splitlines()[2:]
    rows = [line for line in table if line.startswith("|")]
    assert [each for each in ATTACKS if not any(each in row for row in rows)] == []
    assert [line for line in rows if not re.search(r"`tests/[\w/]+\.py::\w+`", line)] == []


def test_tests_that_are_named_exist() -> None:
    """Check that every test that a page cites as proof exists."""
    named = {
        each
        for page in PAGES
        for each in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text())
    }
    assert named
    missing = [
        f"{path}::{name}"
        for path, name in sorted(named)
        if not (ROOT / path).exists() or f"\ndef {name}(" not in (ROOT / path).read_text()
    ]
    assert missing == []
