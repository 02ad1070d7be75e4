"""What a request's Authorization header says. Pure functions."""

import base64

from nsqcy.http.parser import Head


def basic(head: Head) -> tuple[str, str]:
    """Name and password of HTTP's Basic authentication; empty without them."""
    scheme, _, encoded = head.header("Authorization").partition(" ")
    if scheme.lower() != "basic":
        return "", ""
    try:
        decoded = base64.b64decode(encoded.strip(), validate=True).decode()
    except ValueError:
        return "", ""
    name, colon, password = decoded.partition(":")
    return (name, password) if colon else ("", "")


def bearer(head: Head) -> str:
    """The token of HTTP's Bearer authentication; empty without one."""
    scheme, _, token = head.header("Authorization").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
