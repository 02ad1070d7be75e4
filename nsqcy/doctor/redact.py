"""Removes secrets from text that leaves the host.

Recognises secrets by their form, and replaces the values that the caller passes. Reads no files.
"""

import base64
import json
import re
from collections.abc import Callable, Iterable
from urllib.parse import quote, quote_plus

REMOVED = "[removed]"
SHORTEST = 4  # characters; shorter values are not replaced

# An option with such a name contains a secret, or the name of a file with one. Its value is not
# shown, because a user may have entered the secret itself instead of the file name.
SECRET_NAME = re.compile("secret|password|token|key", re.IGNORECASE)
_URL = re.compile(r"[a-z][a-z0-9+.-]{0,20}://", re.IGNORECASE)
_WORDS = "authori[sz]ation|token|secret|passw(?:or)?d|passwd|pwd|api[_-]?key|cookie|signature"

Rule = tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]

_RULES: tuple[Rule, ...] = (
    (
        re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*KEY-----|\Z)", re.S),
        REMOVED,
    ),
    # user:password@ of a URL, with or without a scheme
    (re.compile(r"(?<=://)[^\s/?#\"'<>]{1,512}@"), f"{REMOVED}@"),
    (re.compile(r"[^\s/?#\"'<>@:=,]{1,64}:[^\s/?#\"'<>@]{1,128}@(?=[\w\[])"), f"{REMOVED}@"),
    # the query of a URL
    (re.compile(r"(://[^\s?\"'<>]{1,512}\?)[^\s\"'<>]+"), rf"\1{REMOVED}"),
    (re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{4,}", re.IGNORECASE), rf"\1 {REMOVED}"),
    # the hashes of a users file
    (re.compile(r"\$(?:scrypt|sha256|2[aby]|argon2\w*)\$[^\s\"',;]+"), REMOVED),
    # `token = value`, `"token": "value"`, `Authorization: value`, `?token=value`
    (
        re.compile(
            rf"((?:{_WORDS})s?\\?[\"']?\s*[:=]\s*)(\\?\"[^\"\\]*\\?\"|'[^']*'|[^\s\"',;&}}]+)",
            re.IGNORECASE,
        ),
        lambda found: found[1] + _quoted_like(found[2]),
    ),
)


def _quoted_like(value: str) -> str:
    quotes = re.match(r"\\?[\"']", value)
    return f"{quotes[0]}{REMOVED}{quotes[0]}" if quotes else REMOVED


class Redactor:
    """Removes secrets from texts: those of a known form, and the given values in any encoding."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets for form in _forms(secret.strip())}
        longest_first = sorted(forms, key=lambda form: (-len(form), form))
        self._values = re.compile("|".join(map(re.escape, longest_first))) if forms else None

    def text(self, text: str) -> str:
        if self._values is not None:
            text = self._values.sub(REMOVED, text)
        for pattern, replacement in _RULES:
            text = pattern.sub(replacement, text)
        return text


def _forms(secret: str) -> set[str]:
    """Return the encodings of a secret in URLs, headers and JSON."""
    if len(secret) < SHORTEST:
        return set()
    coded = base64.b64encode(secret.encode()).decode()
    forms = {secret, quote(secret), quote(secret, ""), quote_plus(secret), coded}
    return forms | {json.dumps(secret)[1:-1], coded.rstrip("="), secret.encode().hex()}


def option_value(name: str, value: str) -> str:
    """Return the value of an option without its secrets. Only the scheme and host of a URL remain,
    because the path of a webhook is as secret as a password."""
    if not value:
        return value
    if SECRET_NAME.search(name):
        return "[set]"
    return ", ".join(_url_shown(part.strip()) for part in value.split(","))


def _url_shown(text: str) -> str:
    scheme = _URL.match(text)
    start = scheme.end() if scheme else 0
    if not scheme and "@" not in text:
        return text
    authority, slash, rest = _partition(text[start:])
    host = authority.rpartition("@")[2]
    credentials = f"{REMOVED}@" if "@" in authority else ""
    return text[:start] + credentials + host + (f"/{REMOVED}" if rest else slash)


def _partition(text: str) -> tuple[str, str, str]:
    """Split a URL without its scheme into the authority, the separator, and the rest."""
    found = re.search(r"[/?#]", text)
    if found is None:
        return text, "", ""
    return text[: found.start()], found[0], text[found.end() :]


def secrets_of_value(value: str) -> set[str]:
    """Return the parts of an option's value that may be secrets: the credentials of URLs, and long
    paths and queries."""
    found = set()
    for part in value.split(","):
        scheme = _URL.match(part.strip())
        authority, _, rest = _partition(part.strip()[scheme.end() if scheme else 0 :])
        credentials, at, _ = authority.rpartition("@")
        if at:
            found |= {credentials, credentials.partition(":")[2]}
        if scheme and len(rest) >= 16:
            found.add(rest)
            found |= {each.partition("=")[2] for each in re.split("[?&]", rest)}
    return {each for each in found if len(each) >= SHORTEST}
