"""Page of the connections to all nsqds. Pure: maps fetched data to template values."""

from collections.abc import Sequence
from dataclasses import replace

from nsqcy.cluster.connections import Connection
from nsqcy.nsqadmin.cluster.nodes import Clients
from nsqcy.nsqadmin.html.formatting import client_name
from nsqcy.nsqadmin.html.layout import View
from nsqcy.nsqadmin.html.location import Location
from nsqcy.nsqadmin.html.paging import part
from nsqcy.nsqadmin.html.tables import Columns, table, unsorted

FEW = 2  # number of a producer's topics to show; the rest are only counted


def connections(found: Sequence[Connection], clients: Clients, location: Location) -> View:
    """Return the list of connections that match `q`, sorted by client or by `sort`."""
    found = sorted(found, key=lambda each: (client_name(each.client), each.client.node))
    wanted = location.params.get("q", "").casefold()
    columns: Columns[Connection] = [
        ("Client Host", lambda row: client_name(row.client)),
        ("Consumes", _consumed),
        ("Publishes To", lambda row: ", ".join(row.published)),
        ("NSQd Host", lambda row: row.client.node),
        ("Finish Rate", lambda row: row.client.finish_rate or 0.0),
        ("In-Flight / RDY", lambda row: row.client.in_flight_count),
        ("Received", lambda row: row.client.message_count),
        ("Published", _published),
        ("Connected", lambda row: clients.connected(row.client)),
        ("Attributes", unsorted),
        ("User-Agent", lambda row: row.client.user_agent),
    ]
    rows = [each for each in found if wanted in _text(each)]
    listed = table("Connections", columns, rows, location)
    shown = part(location, listed.rows)
    values = {
        "connections": len(found),
        "saturated": sum(each.client.saturated for each in found),
        "listed": replace(listed, rows=shown.rows, names=[_name(each) for each in shown.rows]),
        "published": _published,
        "few": FEW,
        "clients": clients,
        "page": shown.page,
        "last": shown.last,
        "location": location,
    }
    return View("connections.html", values)


def _consumed(row: Connection) -> str:
    return f"{row.topic}/{row.channel}" if row.topic else ""


def _published(row: Connection) -> int:
    return sum(row.published.values())


def _name(row: Connection) -> str:
    return f"{row.client.remote_address} {row.client.node} {_consumed(row)}"


def _text(row: Connection) -> str:
    """Return the text that the search examines."""
    client = row.client
    words = client_name(client), _consumed(row), *row.published, client.node, client.user_agent
    return "\n".join((*words, client.remote_address)).casefold()
