"""GET requests that pollers repeat: the log contains only new ones."""

from nsqcy.http.repeated_requests import REPEAT, Polls


def test_a_repeated_request_is_no_news() -> None:
    polls = Polls()
    assert polls.is_news(0.0, "10.0.0.1:1000", "/ping", 200)
    assert not polls.is_news(1.0, "10.0.0.1:2000", "/ping", 200)
    assert not polls.is_news(REPEAT - 1, "10.0.0.1:3000", "/ping", 200)
    assert polls.is_news(REPEAT, "10.0.0.1:3000", "/ping", 200)
    assert not polls.is_news(2 * REPEAT - 1, "10.0.0.1:3000", "/ping", 200)


def test_another_status_host_or_target_is_news() -> None:
    polls = Polls()
    asked = [
        ("10.0.0.1:1", "/ping", 200),
        ("10.0.0.1:1", "/ping", 500),
        ("10.0.0.1:1", "/ping", 200),
        ("10.0.0.2:1", "/ping", 200),
        ("10.0.0.1:1", "/stats", 200),
        ("[::1]:1", "/ping", 200),
        ("@", "/ping", 200),
    ]
    assert all(polls.is_news(0.0, *each) for each in asked)
    assert not any(polls.is_news(1.0, *each) for each in asked[2:])


def test_what_is_remembered_is_limited() -> None:
    polls = Polls()
    for number in range(10_000):
        polls.is_news(0.0, "10.0.0.1:1", f"/stats?{number}", 200)
    assert len(polls._seen) <= 2000
