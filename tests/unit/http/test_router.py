"""From a path to a route: variables, base paths, and redirects for paths that nearly match."""

import pytest

from nsqcy.http.parser import Head, HeadCache, Reply
from nsqcy.http.router import Request, Route, Router


def handler(api: object, request: Request) -> str:
    return ""


PATHS = ("/", "/a", "/a/:x", "/a/:x/:y", "/a/:x/named", "/b/")
ROUTES = [Route("GET", path, handler) for path in PATHS]


def resolve(path: str, method: str = "GET", base: str = "") -> str | tuple[int, str]:
    """Return the path of the route, or the status and the alternative."""
    found = Router(ROUTES, base).resolve(Head(method, path))
    if isinstance(found, Reply):
        headers = dict(found.headers)
        return found.status, headers.get("Location", headers.get("Allow", ""))
    return found.path


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/", "/"),
        ("/a", "/a"),
        ("/a/1", "/a/:x"),
        ("/a/1/2", "/a/:x/:y"),
        ("/a/1/named", "/a/:x/named"),
        ("/a/%2561", "/a/:x"),
        ("/a/1/2/3", (404, "")),
        ("/a//2", (301, "/a/2")),
        ("/a/1/", (301, "/a/1")),
        ("/A/Bc/D", (301, "/a/Bc/D")),
        ("/A/Bc/NAMED", (301, "/a/Bc/named")),
        ("/x/../a/./1?q", (301, "/a/1?q")),
        ("/b", (301, "/b/")),
        ("/c", (404, "")),
    ],
)
def test_paths(path: str, found: object) -> None:
    assert resolve(path) == found


def test_methods() -> None:
    assert resolve("/a/1/2", "PUT") == (405, "GET, OPTIONS")
    assert resolve("/A", "POST") == (404, "")


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/Up", "/Up"),
        ("/Up/", (301, "/Up")),
        ("/up/A", (301, "/Up/a")),
        ("/Up/a/1/2", "/Up/a/:x/:y"),
        ("/", (404, "")),
        ("/a", (404, "")),
    ],
)
def test_bases(path: str, found: object) -> None:
    assert resolve(path, base="/Up") == found


def test_headers_are_kept_only_on_request() -> None:
    data = b"GET / HTTP/1.1\r\nHost: h\r\nX-Me: one \r\nx-me: two\r\nX-Nsq-A: b\r\n\r\n"
    head = HeadCache(keep_headers=True).parse(data)
    assert (head.header("x-ME"), head.header("host"), head.header("none")) == ("one", "h", "")
    assert head.nsq_headers == ((b"a", b"b"),)
    assert HeadCache().parse(data).headers == ()
    assert HeadCache(frozenset((b"x-me", b"none"))).parse(data).headers == (("X-Me", "one"),)
