"""nsqd's HTTP with and without the fast path: the same pieces of input have the same answers and
effects."""

import random
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.garbage import mutated, some_requests
from support.http_core import MAX_MSG_SIZE, same_both_ways
from support.runs import runs

TOPICS = ["a", "b#ephemeral", "boom", "no name", ""]
TARGETS = ["/pub?topic=%s&defer=5", "/pub?x=1&topic=%s", "/pub?topic=%s&topic=b", "/pub/?topic=%s"]
TARGETS += ["/mpub?topic=%s", "/topic/create?topic=%s", "/topic/delete?topic=%s"]
TARGETS += ["http://h/pub?topic=%s", "//pub?topic=%s", "/pub?topic=%%61%s", "/pub?topic=%s;"]
SIZES = [0, 1, 2, 9, 10, 11, MAX_MSG_SIZE, MAX_MSG_SIZE + 1, 300_000]
LENGTHS = ["Content-Length: %d", "content-length: %d", "CONTENT-LENGTH: %d", "Content-Length:%d"]
LENGTHS += ["Content-Length:  %d", "Content-Length: %d ", "Content-Length: 0%d", "X: %d"]
LENGTHS += ["Content-Length: 000000000%d", "Content-Length: +%d", "Content-Length: %d\r\n 1"]
LENGTHS += ["Content-Length: %d\r\nContent-Length: 1", "X: y\r\nContent-Length: %d"]
OTHERS = ["Host: h", "Accept: */*", "Connection: keep-alive", "Connection: close"]
OTHERS += ["Expect: 100-continue", "Transfer-Encoding: chunked", "X-Content-Length: 3"]
OTHERS += ["Upgrade: h2c\r\nConnection: Upgrade", "X: y\r\n z", "Host : h", "X: \x00"]
PLAIN = b"POST /pub?topic=a HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx"
PARTS = ["topic", "size", "target", "length", "other", "method", "version", "end", "body"]


def a_publish(chance: random.Random) -> bytes:
    """Return a publish. Most take the fast path; in the others, one part is unusual."""
    odd = chance.choice([*PARTS, *[""] * 4])
    size = chance.choice(SIZES if odd == "size" else SIZES[1:7])
    body = PLAIN if odd == "body" else chance.randbytes(size)
    method = chance.choice(["PUT", "HEAD", "post"]) if odd == "method" else "POST"
    target = chance.choice(TARGETS) if odd == "target" else "/pub?topic=%s"
    topic = chance.choice(TOPICS if odd == "topic" else TOPICS[:3])
    version = chance.choice(["1.0", "2.0", "1.10"]) if odd == "version" else "1.1"
    lines = ["Host: h", chance.choice(LENGTHS if odd == "length" else LENGTHS[:2]) % len(body)]
    lines += [chance.choice(OTHERS)] * (odd == "other")
    chance.shuffle(lines)
    head = "\r\n".join([f"{method} {target % topic} HTTP/{version}", *lines, "", ""])
    return (head.replace("\r\n", "\n", 1) if odd == "end" else head).encode() + body


def some_publishes(chance: random.Random) -> bytes:
    requests = [a_publish(chance) for _ in range(chance.randint(1, 8))]
    if chance.random() < 0.1:
        requests.append(some_requests(chance))
    data = b"".join(chance.choices(requests, k=chance.randint(1, 12)))
    return mutated(data, chance) if chance.random() < 0.2 else data


def pieces(data: bytes, chance: random.Random) -> list[bytes]:
    """Cut the data at random places, preferably at the ends of heads and bodies."""
    cuts = {chance.randrange(len(data) + 1) for _ in range(chance.choice([0, 0, 1, 3, 20]))}
    if chance.random() < 0.5:
        ends = [at + 4 for at in range(len(data)) if data.startswith(b"\r\n\r\n", at)]
        cuts.update(chance.sample(ends, min(len(ends), 3)))
    # No piece is larger than the buffer of a socket pair.
    whole = [data[start:end] for start, end in pairwise([0, *sorted(cuts), len(data)])]
    return [each[at : at + 50_000] for each in whole for at in range(0, len(each), 50_000)]


def fail(kind: str, topic: str, channel: str | None) -> None:
    if topic == "boom" and kind == "topic_created":
        raise RuntimeError("boom")


@settings(deadline=None, max_examples=runs(120))
@given(st.integers(0, 2**32))
def test_with_and_without(seed: int) -> None:
    chance = random.Random(seed)
    publishes = pieces(some_publishes(chance), chance)
    same_both_ways(publishes, on_event=fail)
