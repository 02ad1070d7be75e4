"""Debug switches for a running nsqd, in addition to the pprof pages."""

import re

from nsqcy import names
from nsqcy.errors import HttpError
from nsqcy.http.parser import Head, parse_query
from nsqcy.http.router import Request
from nsqcy.nsqd.http.context import Context

_DECIMAL = re.compile(r"[+-]?[0-9]+")


def debug_block_rate(api: Context, request: Request) -> None:
    """Accept and ignore the rate: nsqd does not profile blocking."""
    form = parse_query(bytes(request.body.data).decode("latin-1")) or {}
    text = form.get("rate", request.params.get("rate", ""))
    if not _DECIMAL.fullmatch(text):
        reason = f"strconv.Atoi: parsing {names.quote(text)}: invalid syntax"
        raise HttpError(400, f"invalid block rate : {reason}")


def form_limit(api: Context, head: Head) -> int:
    return 4096


def debug_free(api: Context, request: Request) -> None:
    api.backend.inspect("free")
