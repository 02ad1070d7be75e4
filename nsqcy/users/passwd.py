"""`nsqcy passwd NAME`: prints a user's section for the --auth-file file.

The section goes to stdout, so that it can be appended to the file. Reads a password from the
terminal or from stdin; shows a new token once on stderr.
"""

import getpass
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import click

from nsqcy.config.commands import TableOption
from nsqcy.logging.logger import write
from nsqcy.users import file, hashes
from nsqcy.users.user import ADMIN, PERMISSIONS, PUBLISH, REGISTER, ROLES, SUBSCRIBE, VIEW
from nsqcy.util.standard_streams import show

MIN_LENGTH = 8  # characters
_DOES = {
    PUBLISH: "publish to",
    SUBSCRIBE: "consume",
    ADMIN: "change and delete",
    REGISTER: "register with nsqlookupd, as an nsqd",
}


OPTIONS = (
    click.Option(
        ["--role"],
        type=click.Choice(ROLES),
        help="role in nsqadmin; default: view, if no topics are given",
    ),
    *(
        click.Option(
            [f"--{permission}"],
            metavar="PATTERNS",
            default="",
            help=f"topics that the user may {does}: patterns separated by commas",
        )
        for permission, does in _DOES.items()
    ),
    click.Option(
        ["--certificate"],
        metavar="NAME",
        default="",
        help="name in the user's client certificate",
    ),
    *map(TableOption, file.QUOTAS),
    click.Option(
        ["--token"], is_flag=True, help="create a token for a program instead of a password"
    ),
)


@click.command(params=[click.Argument(["name"]), *OPTIONS])
def passwd(name: str, token: bool, **rights: Any) -> int:
    """Print a user section for --auth-file."""
    if file.NAME.fullmatch(name) is None:
        write(2, f"{name!r} is not a valid user name (allowed: {file.NAME_ALLOWED})\n")
        return 2
    if token:
        secret = hashes.new_token()
        write(2, f"the token of {name} (shown only once): {secret}\n")
        setting = f"token = {hashes.hash_token(secret)}"
    else:
        password = _password()
        if password is None:
            return 1
        setting = f"password = {hashes.hash_password(password)}"
    show("\n".join([f"[user {name}]", *_rights(rights), *_quotas(rights), setting, ""]))
    return 0


def _rights(given: Mapping[str, Any]) -> Iterator[str]:
    """Yield the settings for the user's permissions; the role `view` if no flag grants a
    permission."""
    said = {key: given[key] for key in ("role", "certificate", *PERMISSIONS)}
    if not any(said[key] for key in ("role", *PERMISSIONS)):
        said["role"] = VIEW
    for key, value in said.items():
        if value:
            yield f"{key} = {value}"


def _quotas(given: Mapping[str, Any]) -> Iterator[str]:
    for option in file.QUOTAS:
        value = given[option.name]
        if value != option.default:
            yield f"{option.name} = {option.show(value)}"


def _password() -> str | None:
    """Read a password: twice from a terminal, or one line from stdin. Return None if it is
    invalid."""
    try:
        if sys.stdin.isatty():
            text = getpass.getpass("Password: ")
            if getpass.getpass("Repeat the password: ") != text:
                write(2, "the passwords do not match\n")
                return None
        else:
            text = sys.stdin.readline().rstrip("\n")
    except (EOFError, KeyboardInterrupt):
        return None
    if len(text) < MIN_LENGTH:
        write(2, f"a password must have at least {MIN_LENGTH} characters\n")
        return None
    return text
