"""The options and requests of each daemon, for tests of files that start it."""

from typing import Any

from nsqcy.nsqadmin import options as nsqadmin
from nsqcy.nsqadmin.api import service as nsqadmin_api
from nsqcy.nsqd import options as nsqd
from nsqcy.nsqd.http import api as nsqd_api
from nsqcy.nsqlookupd import api as nsqlookupd_api
from nsqcy.nsqlookupd import options as nsqlookupd

# The option table, the function that resolves the options, and the HTTP routes.
DAEMONS: dict[str, tuple[Any, Any, Any]] = {
    "nsqd": (nsqd.NSQD, nsqd.resolve, nsqd_api.ROUTES),
    "nsqlookupd": (nsqlookupd.NSQLOOKUPD, nsqlookupd.resolve, nsqlookupd_api.ROUTES),
    "nsqadmin": (nsqadmin.NSQADMIN, nsqadmin.resolve, nsqadmin_api.ROUTES),
}
