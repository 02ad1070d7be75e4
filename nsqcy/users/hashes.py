"""Password and token hashes: creation, format, parsing, and constant-time comparison.

Passwords use scrypt, which costs memory and time. Tokens are random and need no slow hash.
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from typing import NamedTuple

_SCRYPT = re.compile(
    r"\$scrypt\$ln=([0-9]{1,2}),r=([0-9]{1,2}),p=([0-9]{1,2})\$([A-Za-z0-9+/]+)\$([A-Za-z0-9+/]+)"
)
_SHA256 = re.compile(r"\$sha256\$([0-9a-f]{64})")

# Cost of a password check: 32 MiB, and about 0.1 s.
LOG_COST, BLOCKS, PARALLEL = 15, 8, 1
MAX_MEMORY = 128 << 20  # maximum bytes of memory for checking one hash
SALT_BYTES, HASH_BYTES = 16, 32


class Password(NamedTuple):
    """The scrypt hash of a password."""

    log_cost: int
    blocks: int
    parallel: int
    salt: bytes
    hash: bytes

    def is_of(self, text: str) -> bool:
        """Return whether the text is the password. The time taken does not depend on the text."""
        return hmac.compare_digest(self.hash, _scrypt(text, self))

    def __str__(self) -> str:
        costs = f"ln={self.log_cost},r={self.blocks},p={self.parallel}"
        return f"$scrypt${costs}${_base64(self.salt)}${_base64(self.hash)}"


class Token(NamedTuple):
    """The SHA-256 hash of a random token."""

    hash: bytes

    def is_of(self, text: str) -> bool:
        return hmac.compare_digest(self.hash, _sha256(text))

    def __str__(self) -> str:
        return f"$sha256${self.hash.hex()}"


def hash_password(text: str, log_cost: int = LOG_COST) -> Password:
    salt = secrets.token_bytes(SALT_BYTES)
    empty = Password(log_cost, BLOCKS, PARALLEL, salt, bytes(HASH_BYTES))
    return empty._replace(hash=_scrypt(text, empty))


def hash_token(text: str) -> Token:
    return Token(_sha256(text))


def new_token() -> str:
    return secrets.token_urlsafe(32)


# Matches no password. Checking it takes as long as checking a user's password.
NOBODY = Password(LOG_COST, BLOCKS, PARALLEL, bytes(SALT_BYTES), bytes(HASH_BYTES))


def _scrypt(text: str, like: Password) -> bytes:
    return hashlib.scrypt(
        text.encode("utf-8", "surrogateescape"),
        salt=like.salt,
        n=1 << like.log_cost,
        r=like.blocks,
        p=like.parallel,
        maxmem=2 * MAX_MEMORY,
        dklen=len(like.hash),
    )


def _sha256(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode().rstrip("=")


def parse_password(text: str) -> Password | None:
    """Parse a hash; return None if it is malformed, or too cheap or too expensive to check."""
    found = _SCRYPT.fullmatch(text)
    if found is None:
        return None
    log_cost, blocks, parallel = map(int, found.groups()[:3])
    try:
        salt, digest = (
            base64.b64decode(each + "=" * (-len(each) % 4)) for each in found.groups()[3:]
        )
    except binascii.Error:
        return None
    is_sane = 10 <= log_cost <= 20 and blocks and 1 <= parallel <= 4
    if not is_sane or 128 * blocks << log_cost > MAX_MEMORY:
        return None
    if len(salt) < 8 or not 16 <= len(digest) <= 64:
        return None
    return Password(log_cost, blocks, parallel, salt, digest)


def parse_token(text: str) -> Token | None:
    found = _SHA256.fullmatch(text)
    return Token(bytes.fromhex(found[1])) if found else None
