"""What a request's head says of who sends it: users by a header of the proxy in front, names and
passwords, and pages of other sites.

Pure functions.
"""

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from nsqcy.http.authorization import basic
from nsqcy.http.parser import Head
from nsqcy.nsqadmin.options import Network


def may_act(head: Head, header: str, users: Sequence[str]) -> bool:
    """Whether this is one of the users; without any everybody is."""
    return not users or head.header(header) in users


def basic_user(head: Head) -> str:
    """Its name alone: who a proxy in front has let in."""
    return basic(head)[0]


def is_of_another_site(head: Head) -> bool:
    """Whether a browser sends this because a page of another site made it.

    Browsers say so, and let no page change what they say. Programs say nothing. Where a proxy gives
    us another host than the browser has, Sec-Fetch-Site tells the sites apart (browsers send it
    over HTTPS), and so does JSON: a page may not send it to another site unasked, and we do not
    answer when browsers ask.
    """
    if head.header("Content-Type").partition(";")[0].strip().lower() == "application/json":
        return False
    site = head.header("Sec-Fetch-Site")
    if site:
        return site not in ("same-origin", "none")
    origin = head.header("Origin")
    try:
        return bool(origin) and urlsplit(origin).netloc != head.header("Host")
    except ValueError:  # it is no URL
        return True


def is_inside(peer: str, network: Network | None) -> bool:
    """Whether a peer, `ip:port`, is in this network; everybody is in none."""
    if network is None:
        return True
    try:
        address = ipaddress.ip_address(peer.rpartition(":")[0].strip("[]"))
    except ValueError:
        return False
    return address in network
