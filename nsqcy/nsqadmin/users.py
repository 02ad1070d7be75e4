"""The file of users: who may log in, with what, and what they may do.

INI, a section for each user, or TOML with the same as tables:

    [user anna]                         [user.anna]
    role = operate                      role = "operate"
    password = $scrypt$ln=15,r=8,p=1$SALT$HASH
    token = $sha256$HASH

Owns the format. Passwords and tokens are there as hashes, and no error shows any of one. Opens no
file.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from nsqcy.errors import ConfigError
from nsqcy.names import quote
from nsqcy.nsqadmin.hashes import Password, Token, parse_password, parse_token
from nsqcy.options import unquoted

VIEW, OPERATE = ROLES = ("view", "operate")
KEYS = ("role", "password", "token")

NAME_ALLOWED = "letters, digits and . _ @ -, up to 64"
SECTION_ALLOWED = f"[user NAME], where NAME is {NAME_ALLOWED}"
PASSWORD_ALLOWED = "what `nsqcy passwd NAME` prints"
TOKEN_ALLOWED = "what `nsqcy passwd --token NAME` prints"

NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}", re.ASCII)
_INI_HEADER = re.compile(r"\[\s*user\s+(.*?)\s*\]")
_INI_START = re.compile(r"\s*(?:#[^\n]*\n\s*)*\[\s*user\s+[^\]\n]*\]")


class User(NamedTuple):
    name: str
    role: str
    password: Password | None = None
    token: Token | None = None

    @property
    def may_operate(self) -> bool:
        return self.role == OPERATE


Users = Mapping[str, User]


# --- reading ------------------------------------------------------------------------------------


class _Section:
    """What is said of a user: values by key, and the line of each, where it is known."""

    def __init__(self, line: int | None, name: str) -> None:
        self.line = line
        self.name = name
        self.values: dict[str, str] = {}
        self.lines: dict[str, int | None] = {}


def parse(path: str, text: str) -> Users:
    """The users of a file, by name; raises ConfigError."""
    sections = _ini(path, text) if _INI_START.match(text) else _toml(path, text)
    users: dict[str, User] = {}
    first: dict[str, int | None] = {}
    for section in sections:
        if section.name in users:
            where = f" at line {first[section.name]}" if first[section.name] else ""
            problem = f"user {section.name} is there already{where}"
            raise ConfigError(path, section.line, problem, "one section for each user")
        users[section.name] = _user(path, section)
        first[section.name] = section.line
    if not users:
        raise ConfigError(path, None, "there is no user, so nobody could log in", SECTION_ALLOWED)
    return users


def _ini(path: str, text: str) -> Iterator[_Section]:
    section: _Section | None = None
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            if section is not None:
                yield section
            header = _INI_HEADER.fullmatch(line)
            if header is None:
                raise ConfigError(path, number, "not the header of a user", SECTION_ALLOWED)
            section = _Section(number, _checked_name(path, number, header[1]))
            continue
        key, equals, value = (part.strip() for part in line.partition("="))
        if not equals or section is None:
            # Not shown: it may be a secret that a line break has torn off.
            raise ConfigError(path, number, "not a setting of a user", "key = value")
        _set(path, section, number, key, unquoted(value))
    if section is not None:
        yield section


def _toml(path: str, text: str) -> Iterator[_Section]:
    import tomllib

    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        found = re.search(r"\(at line ([0-9]+)", str(error))
        line = int(found[1]) if found else None
        allowed = f"TOML, or INI that starts with {SECTION_ALLOWED}"
        raise ConfigError(path, line, "it cannot be read", allowed) from None
    users = tables.pop("user", {})
    for key in tables:
        raise ConfigError(path, _line(text, key), f"unknown key {quote(key)}", "[user.NAME]")
    if not isinstance(users, dict):
        raise ConfigError(path, _line(text, "user"), "user is not a table", "[user.NAME]")
    for name, values in users.items():
        line = _line(text, "user", name) or _line(text, "user")
        section = _Section(line, _checked_name(path, line, name))
        if not isinstance(values, dict):
            raise ConfigError(path, line, f"user {name} is not a table", "[user.NAME]")
        for key, value in values.items():
            _set(path, section, _line_of_key(text, line, key), key, value)
        yield section


def _line(text: str, *names: str) -> int | None:
    """Where a table of TOML is, or a key at the top; good enough for a text."""
    dotted = r"\s*\.\s*".join(f"[\"']?{re.escape(name)}[\"']?" for name in names)
    found = re.search(rf"^[ \t]*\[*[ \t]*{dotted}[ \t]*[\].=]", text, re.MULTILINE)
    return text.count("\n", 0, found.start()) + 1 if found else None


def _line_of_key(text: str, header: int | None, key: str) -> int | None:
    """The line of a key in the table whose header is in that line; that one if it is not found."""
    if header is None:
        return None
    for number, line in enumerate(text.split("\n")[header:], header + 1):
        if line.partition("=")[0].strip(" \t\"'") == key:
            return number
    return header


def _checked_name(path: str, line: int | None, name: str) -> str:
    if not NAME.fullmatch(name):
        raise ConfigError(path, line, f"{quote(name)} is no name of a user", NAME_ALLOWED)
    return name


def _set(path: str, section: _Section, line: int | None, key: str, value: Any) -> None:
    if key not in KEYS:
        raise ConfigError(path, line, f"unknown key {quote(key)}", ", ".join(KEYS))
    if key in section.values:
        problem = f"{key} is already set at line {section.lines[key]}"
        raise ConfigError(path, line, problem, "each key once")
    if not isinstance(value, str):
        raise ConfigError(path, line, f"{key} of user {section.name} is not a text", "a text")
    section.values[key] = value
    section.lines[key] = line


def _user(path: str, section: _Section) -> User:
    name, values, lines = section.name, section.values, section.lines
    role = values.get("role", "")
    if role not in ROLES:
        line = lines.get("role", section.line)
        what = f"has the role {quote(role)}" if "role" in values else "has no role"
        raise ConfigError(path, line, f"user {name} {what}", " or ".join(ROLES))
    password, token = None, None
    if "password" in values:
        password = parse_password(values["password"])
        if password is None:
            problem = f"the password of user {name} is not a hash that can be checked"
            raise ConfigError(path, lines["password"], problem, PASSWORD_ALLOWED)
    if "token" in values:
        token = parse_token(values["token"])
        if token is None:
            problem = f"the token of user {name} is not its hash"
            raise ConfigError(path, lines["token"], problem, TOKEN_ALLOWED)
    if password is None and token is None:
        problem = f"user {name} has neither password nor token"
        raise ConfigError(path, section.line, problem, f"one of them, or both: {PASSWORD_ALLOWED}")
    return User(name, role, password, token)
