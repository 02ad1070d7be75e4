"""The pages, at NSQ's URLs."""

from typing import TYPE_CHECKING

from nsqcy.nsqadmin.frame import Frame
from nsqcy.web.http_protocol import HTML, Reply
from nsqcy.web.router import Request

if TYPE_CHECKING:
    from nsqcy.nsqadmin.api import Api


def index(api: "Api", request: Request) -> Reply:
    frame = Frame(api.options.base, api.may_act(request.head))
    return Reply(200, frame.page("Streams"), HTML, nsq=False)


PAGES = tuple(
    (path, index)
    for path in (
        *("/", "/topics", "/topics/:topic", "/topics/:topic/:channel"),
        *("/nodes", "/nodes/:node", "/counter", "/lookup"),
    )
)
