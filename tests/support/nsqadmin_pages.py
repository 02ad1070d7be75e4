"""The pages of nsqadmin for a cluster under load, with its topic for `trouble`."""

from urllib.parse import quote

from support.loaded_cluster import Lively


def pages(live: Lively) -> dict[str, str]:
    """Return the paths of the pages, without the base path, by the names of their pictures."""
    return {
        "overview": "/",
        "topics": "/topics",
        "topic": "/topics/orders",
        "channel": "/topics/mails/sender",
        "channels": "/channels",
        "connections": "/connections",
        "nodes": "/nodes",
        "node": f"/nodes/{quote(live.nodes[0], safe='')}",
        "question": "/topics/invoices/ledger?ask=empty",
        "log": "/peek/refunds?state=log",
        "messages": "/peek/refunds/bank",
        "dead-letters": "/peek/refunds/bank?state=dead",
        "policy": "/policy/refunds/bank",
        "seek": "/seek/refunds/bank?to=earliest",
        "lookup": "/lookup",
        "audit": "/audit",
        "counter": "/counter",
        "not-found": "/topics/order",
    }
