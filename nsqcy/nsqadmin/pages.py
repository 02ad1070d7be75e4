"""The pages, at NSQ's URLs."""

from nsqcy.nsqadmin.frame import Frame
from nsqcy.nsqadmin.surroundings import Surroundings
from nsqcy.web.http_protocol import HTML, Reply
from nsqcy.web.router import Request, Route


def index(api: Surroundings, request: Request) -> Reply:
    frame = Frame(api.options.base, api.may_act(request.head))
    return Reply(200, frame.page("Streams"), HTML, nsq=False)


ROUTES = tuple(
    Route("GET", path, index, plain=True)
    for path in (
        *("/", "/topics", "/topics/:topic", "/topics/:topic/:channel"),
        *("/nodes", "/nodes/:node", "/counter", "/lookup"),
    )
)
