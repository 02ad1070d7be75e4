"""Command line of `nsqcy copies force`: removes the lost members of a group.

A group without an owner waits until all of its members are back: only a comparison of all copies
shows which one is the most recent. This command removes the members that will never return, so that
the remaining members decide among themselves.
"""

import secrets
from collections.abc import Callable

import click

from nsqcy.config import configuration_file
from nsqcy.config.commands import TableCommand
from nsqcy.config.loader import Settings
from nsqcy.config.options import BOOL, STRING
from nsqcy.copies.group import Group
from nsqcy.copies.values import encode_group
from nsqcy.errors import NsqError, StartError
from nsqcy.etcd.client import EtcdClient
from nsqcy.etcd.messages import EtcdError, Expected, Put
from nsqcy.logging.logger import write
from nsqcy.nsqd.copies import settings
from nsqcy.nsqd.copies.registry import IDENTITY, Contents, decoded, prefix_of
from nsqcy.nsqd.options import NSQD, NsqdOptions, resolve
from nsqcy.options.option import Option
from nsqcy.util.standard_streams import show

GROUP = (
    Option(
        "config",
        STRING,
        "",
        "INI or TOML file of an nsqd in the cluster, for its etcd settings; required",
    ),
    Option("yes", BOOL, False, "change the group; by default, only print what would be lost"),
)
SECTIONS = {"group": GROUP}


class Refused(NsqError):
    """The group cannot be changed, or need not be; str() gives the reason."""


@click.command(cls=TableCommand, sections=SECTIONS)
@click.argument("group")
def force(group: str, config: str, yes: bool) -> int:
    """Remove members of GROUP that will never return.

    All messages that only those members have are lost. `nsqcy copies status` lists the groups.
    """
    if not config:
        raise click.UsageError(
            "--config is required: the configuration file of an nsqd in this cluster"
        )
    options = _options(config)
    try:
        client = settings.etcd(options, {"password": settings.etcd_password(options)})
    except ValueError as error:
        raise StartError(f"--etcd-endpoints: {error}") from None
    try:
        return give_up(client, options.cluster, group, is_agreed=yes)
    except (EtcdError, Refused) as error:
        what = "etcd: " if isinstance(error, EtcdError) else ""
        write(2, f"nsqcy copies force: {what}{error}\n")
        return 1


def _options(path: str) -> NsqdOptions:
    options = resolve(Settings(NSQD, {}, configuration_file.read_file(NSQD, path)))
    if not options.etcd_endpoints:
        raise StartError(f"{path} has no etcd_endpoints")
    return options


def give_up(
    client: EtcdClient,
    cluster: str,
    group_id: str,
    *,
    is_agreed: bool,
    say: Callable[[str], object] = lambda text: show(text),
) -> int:
    """Print what will be lost, and change the group if the user agrees. Raises EtcdError and
    Refused."""
    prefix = prefix_of(cluster)
    found, _ = client.read(prefix)
    contents = decoded(prefix, found)
    key = f"{prefix}groups/{group_id}"
    if key in contents.invalid:
        raise Refused(f"the value of group {group_id} is invalid: {contents.invalid[key]}")
    group = next((each for each, _ in contents.groups if each.id == group_id), None)
    if group is None:
        raise Refused(f"cluster {cluster} has no group {group_id}")
    value = forced(group, contents)
    say(describe(group, value, contents))
    if not is_agreed:
        say("\nNothing was changed. Add --yes to change the group.\n")
        return 1
    # The registry may be replaced in the meantime, and the owner may return.
    identity = prefix + IDENTITY
    expected = [
        Expected(identity, contents.values.get(identity)),
        Expected(key, encode_group(group)),
    ]
    if group.session:
        expected.append(Expected(f"{prefix}sessions/{group.session}", None))
    if not client.transact(expected, [Put(key, encode_group(value))]):
        raise Refused(
            "the group or the registry has changed in the meantime: run nsqcy copies status again"
        )
    say("\nThe group was changed. One of its members will become its owner within seconds.\n")
    return 0


def forced(group: Group, contents: Contents) -> Group:
    """Return the value of a group without the members that have no session. Raises Refused."""
    if group.done:
        raise Refused(f"group {group.id} has ended: all of its messages have been moved")
    if group.session in {each.id for each in contents.sessions}:
        raise Refused(
            f"the owner of group {group.id}, {group.owner}, is running (it has a session)"
        )
    nodes = {each.node for each in contents.sessions}
    if not nodes & set(group.members):
        raise Refused(
            f"no member of group {group.id} has a session: start nsqd on one of"
            f" {', '.join(group.members)}"
        )
    if nodes >= set(group.members):
        raise Refused(f"all members of group {group.id} are back: one of them will take over")
    return group.forced(nodes, secrets.token_hex(8))


def describe(group: Group, value: Group, contents: Contents) -> str:
    sessions = {each.node: each for each in contents.sessions}
    claims = {
        node: claim
        for group_id, node, claim in contents.claims
        if group_id == group.id and claim.nonce == group.nonce
    }
    lines = [
        f"group {group.id}: {group.durability}, {group.copies} copies; publishes"
        f" require at least {group.min_copies}",
        "",
        "members to abandon, with all messages that only they have:",
        *(f"  {node}" for node in group.members if node not in value.members),
        "remaining members:",
    ]
    for node in value.members:
        claim = claims.get(node)
        copy = f", {claim.size} bytes of epoch {claim.epoch}" if claim else ""
        lines.append(f"  {node} at {sessions[node].address}{copy}")
    lines += [
        "",
        "Messages that were acknowledged may be lost, and finished ones may be delivered again.",
        "Make sure that the abandoned nodes never return, or that their data may be overwritten.",
    ]
    if value.closed:
        lines.append("The group's messages will be moved to the topics with the same names.")
    elif len(value.members) < value.min_copies:
        lines.append("The group will accept publishes once enough other nodes have joined.")
    return "".join(f"{line}\n" for line in lines)
