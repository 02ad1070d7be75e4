"""`nsqcy passwd NAME`: the section of a user for nsqadmin's --auth-file.

The section goes to stdout, so that it can be appended to the file; what is secret is read from the
terminal or from stdin, or is shown once on stderr.
"""

import argparse
import getpass
import sys
from collections.abc import Sequence

from nsqcy.log import write
from nsqcy.nsqadmin import hashes, users

LEAST = 8  # characters


def main(words: Sequence[str]) -> int:
    """Print the section; gives the exit code."""
    arguments = _parser().parse_args(words)
    if users.NAME.fullmatch(arguments.name) is None:
        write(2, f"{arguments.name!r} is no name of a user (allowed: {users.NAME_ALLOWED})\n")
        return 2
    if arguments.token:
        token = hashes.new_token()
        write(2, f"the token of {arguments.name}, which is shown this once: {token}\n")
        setting = f"token = {hashes.hash_token(token)}"
    else:
        password = _password()
        if password is None:
            return 1
        setting = f"password = {hashes.hash_password(password)}"
    write(1, f"[user {arguments.name}]\nrole = {arguments.role}\n{setting}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nsqcy passwd", description="Print a user for the file of nsqadmin's --auth-file."
    )
    parser.add_argument("name", metavar="NAME")
    parser.add_argument(
        "--role", choices=users.ROLES, default=users.VIEW, help="what the user may do (view)"
    )
    parser.add_argument(
        "--token", action="store_true", help="make a token for a program, instead of a password"
    )
    return parser


def _password() -> str | None:
    """Typed twice at a terminal, or a line of stdin."""
    try:
        if sys.stdin.isatty():
            text = getpass.getpass("Password: ")
            if getpass.getpass("Once more: ") != text:
                write(2, "they differ\n")
                return None
        else:
            text = sys.stdin.readline().rstrip("\n")
    except (EOFError, KeyboardInterrupt):
        return None
    if len(text) < LEAST:
        write(2, f"a password has {LEAST} characters or more\n")
        return None
    return text
