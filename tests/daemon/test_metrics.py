"""/metrics of nsqlookupd and nsqadmin; for nsqd see tests/conformance/test_metrics.py."""

import http.client
from functools import partial

import pytest

from nsqcy.metrics.families import OF_NSQADMIN, OF_NSQLOOKUPD
from support.fake_http_daemon import Upstream
from support.metrics_scraper import OPENMETRICS, check_by_promtool, check_names, scrape
from support.nsqadmin_process import Admin
from support.nsqlookupd_process import Lookupd

pytestmark = pytest.mark.ours


def test_nsqlookupd() -> None:
    with Lookupd() as lookupd:
        web, conn = lookupd.web, lookupd.connect()
        conn.identify("A", http_port=1)
        conn.register("t", "c")
        conn.register("u")
        web.post("/topic/create", topic="nobodys")
        web.post("/topic/tombstone", topic="t", node="A:1")
        for _ in range(2):
            web.get("/lookup", topic="t")
        for path in ("/nope", "/nope/2", "/lookup"):
            web.get(path)
        web.request("BREW", "/lookup")
        kept = http.client.HTTPConnection("127.0.0.1", lookupd.http_port, timeout=10)
        for path in ("/topics", "/nope/3"):
            kept.request("GET", path)
            kept.getresponse().read()
        found = scrape(web, accept=f"{OPENMETRICS};version=1.0.0")
        text = scrape(web)
        kept.close()
    check_names(found, OF_NSQLOOKUPD)
    counts = ("nodes", "topics", "channels", "producers", "tombstones")
    assert [found.value(f"nsqlookupd_{name}") for name in counts] == [1, 3, 1, 2, 1]
    assert found.value("nsqlookupd_connections", kind="tcp") == 1
    assert found.value("nsqlookupd_connections", kind="http") >= 1
    answers = partial(found.value, "nsqlookupd_http_requests_total")
    assert answers(method="GET", route="/lookup", status="200") == 2
    assert answers(method="GET", route="/lookup", status="400") == 1
    assert answers(method="GET", route="(none)", status="404") == 3
    assert answers(method="GET", route="/topics", status="404") == 0
    assert found.total("nsqlookupd_http_requests_total", method="(other)", route="(none)") == 1
    times = partial(found.value, method="GET", route="/lookup")
    assert times("nsqlookupd_http_request_duration_seconds_count") == 3
    assert times("nsqlookupd_http_request_duration_seconds_bucket", le="+Inf") == 3
    assert 0 < times("nsqlookupd_http_request_duration_seconds_sum") < 60
    assert found.value("process_resident_memory_bytes") > 1 << 20
    (build,) = found.labels("nsqlookupd_build_info")
    assert build["nsq"] == "1.3.0"
    check_by_promtool(text)


def test_nsqadmin() -> None:
    with (
        Upstream(topics={"topics": ["t"]}, nodes=500) as upstream,
        Admin(lookupd_http_address=upstream.address) as admin,
    ):
        web = admin.web
        assert web.get("/api/topics").status == 200
        assert web.get("/api/nodes").status == 502
        admin.point_at("127.0.0.1:1")
        assert web.get("/api/topics").status == 502
        for name in ("t", "u"):
            web.get(f"/api/topics/{name}")
        found = scrape(web, accept=f"{OPENMETRICS};version=1.0.0", gzipped=True)
        text = scrape(web)
    check_names(found, OF_NSQADMIN)
    assert found.was_compressed
    upstreams = partial(found.value, "nsqadmin_upstream_requests_total")
    assert upstreams(outcome="ok") == upstreams(outcome="bad") == 1
    assert upstreams(outcome="unreachable") == 3
    assert upstreams(outcome="timeout") == 0
    answers = partial(found.value, "nsqadmin_http_requests_total", method="GET")
    assert answers(route="/api/topics", status="200") == 1
    assert answers(route="/api/topics", status="502") == 1
    assert answers(route="/api/topics/:topic", status="502") == 2
    assert found.value("nsqadmin_connections", kind="http") >= 1
    assert not list(found.labels("nsqadmin_sessions"))
    check_by_promtool(text)
