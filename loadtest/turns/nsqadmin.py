"""The pages of nsqadmin that show all topics.

Its handlers run in threads, which the probe of event loops cannot see: they delay the loop only
while they hold the interpreter. A row is therefore the longest wait of a /ping beside a client that
requests the page repeatedly, in CPU time of nsqadmin: waiting for a CPU does not count.
"""

import itertools
import time
from collections.abc import Iterator

from loadtest.daemons import Nsqadmin, Nsqd
from loadtest.many_clients import Loop
from loadtest.turns.nsqd import Clients, create_topics
from loadtest.turns.rows import Row, Sizes

REQUESTS = 4  # requests for the page; a /ping may have to wait during each
PAGES = ("/", "/topics", "/channels", "/nodes", "/nodes/:node", "/lookup", "/counter")
API = ("/api/topics", "/api/nodes", "/api/nodes/:node", "/api/counter")


def rows(nsqd: Nsqd, admin: Nsqadmin, sizes: Sizes) -> Iterator[Row]:
    create_topics(Clients(nsqd), sizes.topics)

    def get(path: str) -> None:
        web = admin.web
        web.timeout = 60.0
        answer = web.get(path.replace(":node", nsqd.http_address))
        assert answer.status == 200, (path, answer.status, answer.body[:200])

    for path in PAGES + API:
        yield Row(f"GET {path}", f"{sizes.topics:,} topics", lambda path=path: get(path))


def longest_wait(admin: Nsqadmin, row: Row) -> float:
    """Return the longest wait of a /ping beside the requests of a row, in ms of CPU time."""
    clock = _cpu_clock(admin.process.pid)
    numbers = itertools.count(1)

    def request() -> bool:
        row.act()
        return next(numbers) < REQUESTS

    link = admin.web.link()
    beside = Loop(request)
    longest = 0.0
    while beside.is_running:
        began = time.clock_gettime(clock)
        link.request("GET", "/ping")
        assert link.getresponse().read() == b"OK"
        longest = max(longest, time.clock_gettime(clock) - began)
    beside.join()
    link.close()
    return longest * 1e3


def _cpu_clock(pid: int) -> int:
    """Return the clock of another process's CPU time, as clock_getcpuclockid(3) does."""
    return (~pid << 3) | 2
