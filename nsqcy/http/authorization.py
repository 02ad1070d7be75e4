"""Parsing of a request's Authorization header. Pure functions."""

import base64

from nsqcy.http.parser import Head


def basic(head: Head) -> tuple[str, str]:
    """Return the name and password from HTTP Basic authentication; both are empty if there is
    none."""
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
    """Return the token from HTTP Bearer authentication; empty if there is none."""
    scheme, _, token = head.header("Authorization").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
