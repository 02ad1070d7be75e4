"""`nsqcy passwd NAME`: prints a user's section for the --auth-file file.

The section goes to stdout, so that it can be appended to the file. Reads a password from the
terminal or from stdin; shows a new token once on stderr.
"""

import argparse
import getpass
import sys
from collections.abc import Iterator, Sequence

from nsqcy.config.arguments import PlainParser, SetOption
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


def main(words: Sequence[str]) -> int:
    """Print the section; return the exit code."""
    arguments = _parser().parse_args(words)
    if file.NAME.fullmatch(arguments.name) is None:
        write(2, f"{arguments.name!r} is not a valid user name (allowed: {file.NAME_ALLOWED})\n")
        return 2
    if arguments.token:
        token = hashes.new_token()
        write(2, f"the token of {arguments.name} (shown only once): {token}\n")
        setting = f"token = {hashes.hash_token(token)}"
    else:
        password = _password()
        if password is None:
            return 1
        setting = f"password = {hashes.hash_password(password)}"
    lines = [*_rights(arguments), *_quotas(arguments), setting]
    show("\n".join([f"[user {arguments.name}]", *lines, ""]))
    return 0


def _rights(arguments: argparse.Namespace) -> Iterator[str]:
    """Yield the settings for the user's permissions; the role view if no flag grants anything."""
    said = {key: getattr(arguments, key) for key in ("role", "certificate", *PERMISSIONS)}
    if not any(said[key] for key in ("role", *PERMISSIONS)):
        said["role"] = VIEW
    for key, value in said.items():
        if value:
            yield f"{key} = {value}"


def _quotas(arguments: argparse.Namespace) -> Iterator[str]:
    for option in file.QUOTAS:
        value = getattr(arguments, option.name, option.default)
        if value != option.default:
            yield f"{option.name} = {option.show(value)}"


def _parser() -> argparse.ArgumentParser:
    parser = PlainParser(prog="nsqcy passwd", description="Print a user section for --auth-file.")
    parser.add_argument("name", metavar="NAME")
    parser.add_argument(
        "--role",
        choices=ROLES,
        default="",
        help="role in nsqadmin; default: view, if no topics are given",
    )
    for permission in PERMISSIONS:
        parser.add_argument(
            f"--{permission}",
            metavar="PATTERNS",
            default="",
            help=f"topics that the user may {_DOES[permission]}: patterns separated by commas",
        )
    parser.add_argument(
        "--certificate",
        metavar="NAME",
        default="",
        help="name in the user's client certificate",
    )
    for option in file.QUOTAS:
        parser.add_argument(f"--{option.flag}", action=SetOption, option=option)
    parser.add_argument(
        "--token", action="store_true", help="create a token for a program instead of a password"
    )
    return parser


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
