"""Every command and route has a row in the table of the longest event-loop iterations."""

import re
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from loadtest.turns import nsqadmin, nsqlookupd
from loadtest.turns.rows import SMALL
from loadtest.turns.scenes import NSQD
from nsqcy.http.router import Route
from nsqcy.nsqadmin.api import queries
from nsqcy.nsqadmin.pages import channels, nodes, overview, topics
from nsqcy.nsqd.http.api import ROUTES
from nsqcy.nsqlookupd import api, protocol

ROOT = Path(__file__).parents[3]
COMMANDS = re.compile(r'word_is\(\w+, (?:b")?([A-Z_]+)')


def routes(table: tuple[Route, ...]) -> set[str]:
    return {f"{route.method} {route.path}" for route in table}


def test_nsqd() -> None:
    protocol_files = (ROOT / "cext/nsqcy/protocol").glob("*.pyx")
    commands = set(COMMANDS.findall("".join(path.read_text() for path in protocol_files)))
    assert {"PUB", "LOG_FETCH", "IDENTIFY"} < commands
    clients = MagicMock()
    conversation = clients.connect.return_value.__enter__.return_value
    conversation.expect_json.return_value = {"next_seq": SMALL.messages + 1, "log_id": 1}
    found = {row.subject for build in NSQD.values() for row in build(clients, SMALL)}
    assert found == commands | routes(ROUTES)


def test_nsqlookupd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsqlookupd, "Peer", MagicMock())
    monkeypatch.setattr(nsqlookupd, "Web", MagicMock())
    found = {row.subject for row in nsqlookupd.rows(MagicMock(), SMALL)}
    assert found == set(protocol._COMMANDS) | routes(api.ROUTES)


def test_nsqadmin() -> None:
    """Every page and answer that needs no topic may show all topics, so it has a row."""
    known = routes(
        (*overview.ROUTES, *topics.ROUTES, *channels.ROUTES, *nodes.ROUTES, *queries.ROUTES)
    )
    of_all = {each for each in known if each.startswith("GET ") and ":topic" not in each}
    found = {row.subject for row in nsqadmin.rows(MagicMock(), MagicMock(), SMALL)}
    assert found == of_all - {"GET /api/copies", "GET /api/drain/:node", "GET /api/history"}
