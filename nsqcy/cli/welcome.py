"""The text that `nsqcy up` shows when everything is ready.

Owns its form, and the commands that it suggests. Starts and queries nothing.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

Addresses = Mapping[str, str]  # by kind: TCP, HTTP, HTTPS

HERE = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
DEMO = """\
  The demo is a shop: it publishes orders, page views, emails, payments and reminders. The backlog
  of emails grows for a minute and drains in the next one. Payments that fail three times end up
  in the topic payments-dead."""
SAVED = "Ctrl-C stops everything and saves all messages."
DISCARDED = "Ctrl-C stops everything and deletes all messages."


class Node(NamedTuple):
    """One of several nsqds."""

    name: str
    addresses: Addresses
    data_path: str
    pid: int


def reachable(address: str) -> str:
    """Return an address for clients on this machine: a wildcard becomes the loopback address."""
    host, _, port = address.rpartition(":")
    return f"{HERE.get(host, host)}:{port}"


def daemons(nsqd: Addresses, data_path: str, lookupd: Addresses) -> str:
    """Return the lines that describe the daemons, except nsqadmin."""
    return (
        f"\n  nsqd:       {_shown(nsqd)}, data in {data_path or '.'}"
        f"\n  nsqlookupd: {_shown(lookupd)}\n"
    )


def nodes(nsqds: Sequence[Node], etcd: str, lookupd: Addresses) -> str:
    """Return the lines that describe several nsqds. `etcd`: its description; empty if `nsqcy up`
    has not started etcd."""
    lines = [
        f"  {each.name + ':':<11} {_shown(each.addresses)}, data in {each.data_path},"
        f" process {each.pid}\n"
        for each in nsqds
    ]
    lines += [f"  etcd:       {etcd}\n"] if etcd else []
    return "".join(["\n", *lines, f"  nsqlookupd: {_shown(lookupd)}\n"])


def admin(page: str) -> str:
    """Return the line for nsqadmin. `page`: its URL, or empty."""
    return f"  nsqadmin:   {page}\n" if page else ""


def commands(nsqd: Addresses, lookupd: Addresses) -> str:
    """Return the suggestions for one nsqd."""
    if not (http := _for_curl(nsqd)):
        return f"\n  {SAVED}\n\n"
    return f"""
  {SAVED} In another terminal:
{_other_ports(http)}
    nsqcy pub greetings hello
    nsqcy topic list
    curl 'http://{reachable(lookupd["HTTP"])}/lookup?topic=greetings'

"""


def commands_for_nodes(nsqds: Sequence[Node], lookupd: Addresses, lease: float) -> str:
    """Return the suggestions for several nsqds. `lease`: in seconds."""
    lines = []
    if http := _for_curl(nsqds[0].addresses):
        lines.append(f"    curl -d 'hello' 'http://{http}/pub?topic=greetings'\n")
    lines += [
        f"    nsqcy copies status --lookupd-http-address={reachable(lookupd['HTTP'])}\n",
        f"    kill -9 {nsqds[0].pid}    # another node takes over its topics after {lease:.0f}s\n",
    ]
    return "".join([f"\n  {SAVED} In another terminal:\n\n", *lines, "\n"])


def demo(page: str, *, is_temporary: bool) -> str:
    """Return the description of the demo; its last line is nsqadmin's URL, if there is one."""
    text = f"\n{DEMO}\n\n  {DISCARDED if is_temporary else SAVED}\n\n"
    return text + (f"  Watch it in nsqadmin: {page}\n" if page else "")


def _other_ports(http: str) -> str:
    """Return the line that makes the nsqcy command find an nsqd at an address other than the
    default."""
    usual = http in ("127.0.0.1:4151", "localhost:4151")
    return "" if usual else f"\n    export NSQCY_NSQD_HTTP_ADDRESS={http}"


def _for_curl(nsqd: Addresses) -> str:
    """Return nsqd's HTTP address, or an empty string if it has none or a path."""
    http = reachable(nsqd.get("HTTP", ""))
    return "" if http.startswith(("/", ":")) else http


def _shown(addresses: Addresses) -> str:
    return ", ".join(f"{title} on {address}" for title, address in addresses.items())
