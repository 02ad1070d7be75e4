"""The users file: users with their credentials, roles and permissions.

INI with one section per user, or TOML with the same keys in tables:

    [user anna]                         [user.anna]
    role = operate                      role = "operate"
    password = $scrypt$ln=15,r=8,p=1$SALT$HASH

    [user billing]
    token = $sha256$HASH
    certificate = billing.example.com
    publish = invoices, invoices.*
    subscribe = orders/billing, orders.*/billing*
    admin = invoices*
    max_connections = 20
    publish_rate = 500

Roles apply to nsqadmin, patterns to nsqd and nsqlookupd. This module owns the format, but opens no
file. The file contains password and token hashes; no error shows any part of a hash.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from nsqcy.config.hints import unknown_key
from nsqcy.config.options import FLOAT, INT, unquoted
from nsqcy.config.policies import (
    CHANNEL_PATTERN_ALLOWED,
    PATTERN_ALLOWED,
    RATE,
    can_match,
    can_match_channels,
)
from nsqcy.errors import ConfigError
from nsqcy.names import quote
from nsqcy.options.option import Option, Rule
from nsqcy.users.hashes import Token, parse_password, parse_token
from nsqcy.users.user import (
    ADMIN,
    PERMISSIONS,
    PUBLISH,
    REGISTER,
    ROLES,
    SUBSCRIBE,
    User,
    Users,
)

QUOTAS: tuple[Option, ...] = (
    Option(
        "max-connections",
        INT,
        0,
        "maximum TCP connections to one nsqd; 0 for no limit",
        rule=Rule("[0,1000000]", lambda value: 0 <= value <= 1_000_000),
    ),
    Option(
        "publish-rate",
        FLOAT,
        0.0,
        "maximum messages per second published to one nsqd; 0 for no limit",
        rule=RATE.rule,
    ),
    Option(
        "publish-bytes-rate",
        INT,
        0,
        "maximum bytes of messages per second published to one nsqd; 0 for no limit",
        rule=Rule("[0,1000000000000]", lambda value: 0 <= value <= 10**12),
    ),
)
TEXTS = ("role", "password", "token", "certificate", *PERMISSIONS)
KEYS = (*TEXTS, *(each.name for each in QUOTAS))
MAX_PATTERNS = 100  # maximum patterns per permission; bounds the time for a decision

NAME_ALLOWED = "up to 64 letters, digits and . _ @ -"
SECTION_ALLOWED = f"[user NAME], where NAME is {NAME_ALLOWED}"
PASSWORD_ALLOWED = "the output of `nsqcy passwd NAME`"
TOKEN_ALLOWED = "the output of `nsqcy passwd --token NAME`"
CERTIFICATE_ALLOWED = "a common name or an alternative name, up to 253 characters"

NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}", re.ASCII)
_CERTIFICATE = re.compile(r"[!-~](?:[ -~]{0,251}[!-~])?")
_INI_HEADER = re.compile(r"\[\s*user\s+(.*?)\s*\]")
_INI_START = re.compile(r"\s*(?:#[^\n]*\n\s*)*\[\s*user\s+[^\]\n]*\]")

Hash = TypeVar("Hash")


# --- reading ------------------------------------------------------------------------------------


class _Section:
    """One user's section: values by key, and the line of each if known."""

    def __init__(self, line: int | None, name: str) -> None:
        self.line = line
        self.name = name
        self.values: dict[str, Any] = {}  # values in TOML may be numbers
        self.lines: dict[str, int | None] = {}


def parse(path: str, text: str) -> Users:
    """Return a file's users by name; raises ConfigError."""
    sections = _ini(path, text) if _INI_START.match(text) else _toml(path, text)
    users: dict[str, User] = {}
    first: dict[str, int | None] = {}
    shown: dict[Token | str, str] = {}
    for section in sections:
        if section.name in users:
            where = f" at line {first[section.name]}" if first[section.name] else ""
            problem = f"user {section.name} is already defined{where}"
            raise ConfigError(path, section.line, problem, "one section per user")
        user = _user(path, section)
        _check_shown_once(path, section, user, shown)
        users[section.name] = user
        first[section.name] = section.line
    if not users:
        raise ConfigError(path, None, "no users in this file", SECTION_ALLOWED)
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
                raise ConfigError(path, number, "not a user section", SECTION_ALLOWED)
            section = _Section(number, _checked_name(path, number, header[1]))
            continue
        key, equals, value = (part.strip() for part in line.partition("="))
        if not equals or section is None:
            # Do not show the line: after a misplaced line break, it may be a secret.
            raise ConfigError(path, number, "not a user setting", "key = value")
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
        raise ConfigError(path, line, "invalid TOML", allowed) from None
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
    """Return the line of a TOML table or top-level key, for an error text; None if not found."""
    dotted = r"\s*\.\s*".join(f"[\"']?{re.escape(name)}[\"']?" for name in names)
    found = re.search(rf"^[ \t]*\[*[ \t]*{dotted}[ \t]*[\].=]", text, re.MULTILINE)
    return text.count("\n", 0, found.start()) + 1 if found else None


def _line_of_key(text: str, header: int | None, key: str) -> int | None:
    """Return the line of a key in the table that begins at `header`, or `header` if not found."""
    if header is None:
        return None
    for number, line in enumerate(text.split("\n")[header:], header + 1):
        if line.partition("=")[0].strip(" \t\"'") == key:
            return number
    return header


def _checked_name(path: str, line: int | None, name: str) -> str:
    if not NAME.fullmatch(name):
        raise ConfigError(path, line, f"{quote(name)} is not a valid user name", NAME_ALLOWED)
    return name


def _set(path: str, section: _Section, line: int | None, key: str, value: Any) -> None:
    key = key.replace("-", "_")
    if key not in KEYS:
        raise ConfigError(path, line, *unknown_key(key, KEYS))
    if key in section.values:
        problem = f"{key} is already set at line {section.lines[key]}"
        raise ConfigError(path, line, problem, "each key once")
    if not isinstance(value, str) and key in TEXTS:
        raise ConfigError(path, line, f"{key} of user {section.name} is not a string", "a string")
    section.values[key] = value
    section.lines[key] = line


def _user(path: str, section: _Section) -> User:
    user = User(
        section.name,
        _role(path, section),
        _hash(path, section, "password", parse_password, PASSWORD_ALLOWED),
        _hash(path, section, "token", parse_token, TOKEN_ALLOWED),
        _certificate(path, section),
        _patterns(path, section, PUBLISH),
        _patterns(path, section, SUBSCRIBE),
        _patterns(path, section, ADMIN),
        *(_quota(path, section, option) for option in QUOTAS),
    )._replace(register=_patterns(path, section, REGISTER))
    if not user.role and not user.patterns:
        problem = f"user {user.name} has neither a role nor permissions"
        raise ConfigError(path, section.line, problem, f"role, {', '.join(PERMISSIONS)}")
    if not (user.password or user.token or user.certificate):
        problem = f"user {user.name} has no password, token or certificate"
        raise ConfigError(path, section.line, problem, f"at least one, such as {PASSWORD_ALLOWED}")
    if user.patterns and not (user.token or user.certificate):
        problem = f"user {user.name} has permissions, which need a token or a certificate"
        raise ConfigError(path, section.line, problem, f"a token or a certificate: {TOKEN_ALLOWED}")
    return user


def _role(path: str, section: _Section) -> str:
    role: str = section.values.get("role", "")
    if "role" in section.values and role not in ROLES:
        problem = f"user {section.name} has an unknown role {quote(role)}"
        raise ConfigError(path, section.lines["role"], problem, " or ".join(ROLES))
    return role


def _hash(
    path: str, section: _Section, key: str, parse: Callable[[str], Hash | None], allowed: str
) -> Hash | None:
    if key not in section.values:
        return None
    found = parse(section.values[key])
    if found is None:
        problem = f"the {key} of user {section.name} is not a valid hash"
        raise ConfigError(path, section.lines[key], problem, allowed)
    return found


def _certificate(path: str, section: _Section) -> str:
    name: str = section.values.get("certificate", "")
    if "certificate" in section.values and not _CERTIFICATE.fullmatch(name):
        problem = f"{quote(name)} is not a valid certificate name"
        raise ConfigError(path, section.lines["certificate"], problem, CERTIFICATE_ALLOWED)
    return name


def _patterns(path: str, section: _Section, permission: str) -> tuple[str, ...]:
    if permission not in section.values:
        return ()
    line = section.lines[permission]
    patterns = tuple(each.strip() for each in section.values[permission].split(","))
    if len(patterns) > MAX_PATTERNS:
        problem = f"{permission} of user {section.name} has {len(patterns)} patterns"
        raise ConfigError(path, line, problem, f"at most {MAX_PATTERNS}")
    for each in patterns:
        of_channels = permission == SUBSCRIBE and "/" in each
        if not (can_match_channels if of_channels else can_match)(each):
            allowed = PATTERN_ALLOWED
            if permission == SUBSCRIBE:
                allowed += f"; or {CHANNEL_PATTERN_ALLOWED}"
            problem = f"{permission}: {quote(each)} is not a valid pattern"
            raise ConfigError(path, line, problem, allowed)
    return patterns


def _quota(path: str, section: _Section, option: Option) -> Any:
    value = section.values.get(option.name)
    if value is None:
        return option.default
    place = path, section.lines[option.name]
    problem = f"{option.name} of user {section.name} is"
    try:
        number = option.kind.parse(value) if isinstance(value, str) else option.kind.toml(value)
    except ValueError:
        raise ConfigError(*place, f"{problem} not a number", option.kind.allowed) from None
    if option.rule is not None and not option.rule.holds(number):
        raise ConfigError(*place, f"{problem} {number}", option.rule.text)
    return number


def _check_shown_once(
    path: str, section: _Section, user: User, shown: dict[Token | str, str]
) -> None:
    """Raise ConfigError if two users share a credential. `shown`: names of earlier users, by
    credential."""
    for key, value in (("token", user.token), ("certificate", user.certificate)):
        if value and value in shown:
            problem = f"user {user.name} has the same {key} as user {shown[value]}"
            raise ConfigError(path, section.lines[key], problem, f"a different {key} for each user")
        if value:
            shown[value] = user.name
