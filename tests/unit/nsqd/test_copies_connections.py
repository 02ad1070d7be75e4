"""Log lines about streams of copies that cannot be opened."""

from nsqcy.nsqd.copies.connections import FAILURE_INTERVAL, FailureLog
from support.gevent_hub import Lines

KEY = ("m1.0", "g")
REFUSED = "COPIES: no stream to m1.0 for g: refused"


def test_failures_are_logged_when_they_change_and_then_rarely() -> None:
    now = 0.0
    lines = Lines()
    failures = FailureLog(lines, lambda: now)

    def said() -> list[str]:
        found = lines.all.copy()
        lines.all.clear()
        return found

    failures.failed(KEY, "refused")
    assert said() == [REFUSED]
    for second in range(1, int(FAILURE_INTERVAL)):
        now = float(second)
        failures.failed(KEY, "refused")
    assert said() == []
    now = FAILURE_INTERVAL
    failures.failed(KEY, "refused")
    assert said() == [f"{REFUSED} (attempt 61, for 60 s)"]
    failures.failed(KEY, "no session")
    assert len(said()) == 1
    failures.failed(("m1.0", "h"), "no session")
    assert said() == ["COPIES: no stream to m1.0 for h: no session"]
    failures.succeeded(KEY)
    assert said() == ["COPIES: stream to m1.0 for g opened after 62 failed attempts"]
    failures.succeeded(KEY)
    assert said() == []
    failures.failed(KEY, "refused")
    failures.ended(KEY)
    failures.failed(KEY, "refused")
    assert said() == [REFUSED, REFUSED]
