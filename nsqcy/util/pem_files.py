"""Certificates and keys in PEM files, with errors that contain the file and the allowed values.

OpenSSL's own errors name neither. Independent of TLS connections and of any option.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import lru_cache
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

_KEY = "a private key in PEM format, without a passphrase"


class PemError(ValueError):
    """An unusable file: its name, the problem and the allowed contents."""


def read(path: str) -> str:
    """Return a file's text. Raises PemError."""
    try:
        with open(path, encoding="latin-1") as file:
            return file.read()
    except OSError as error:
        raise PemError(f"open {path}: {(error.strerror or str(error)).lower()}") from None


def certificates(text: str, file: str) -> list[x509.Certificate]:
    """Return the certificates in `text`, the content of `file`; at least one. Raises PemError."""
    try:
        return x509.load_pem_x509_certificates(text.encode("latin-1"))
    except ValueError:
        problem = _problem(text, "certificate", "private key")
        raise PemError(f"{file} {problem} (allowed: a certificate in PEM format)") from None


def private_key(text: str, file: str) -> Any:
    """Return the private key in `text`, the content of `file`. Raises PemError."""
    try:
        return serialization.load_pem_private_key(text.encode("latin-1"), None)
    except TypeError:
        raise PemError(f"{file} is encrypted (allowed: {_KEY})") from None
    except (ValueError, UnsupportedAlgorithm):
        problem = _problem(text, "private key", "certificate")
        raise PemError(f"{file} {problem} (allowed: {_KEY})") from None


def check_pair(
    certificate: str, certificate_file: str, key: str, key_file: str
) -> list[x509.Certificate]:
    """Return the certificates in a file; the key must match the first one. Raises PemError."""
    chain = certificates(certificate, certificate_file)
    if chain[0].public_key() != private_key(key, key_file).public_key():
        raise PemError(
            f"the key in {key_file} does not belong to the certificate in {certificate_file}"
        )
    return chain


def explain(certificate_file: str, key_file: str, error: Exception) -> str:
    """Return why OpenSSL, which has raised `error`, rejects these files."""
    try:
        check_pair(read(certificate_file), certificate_file, read(key_file), key_file)
    except PemError as found:
        return str(found)
    return getattr(error, "strerror", None) or str(error)


def validity_warnings(found: Iterable[x509.Certificate], file: str, now: datetime) -> Iterator[str]:
    """Return a warning for each certificate in `file` that is not valid at the moment."""
    for each in found:
        subject = each.subject.rfc4514_string()
        start, end = each.not_valid_before_utc, each.not_valid_after_utc
        if end <= now:
            yield f"{file}: the certificate of {subject} expired on {_minute(end)}"
        elif now < start:
            yield f"{file}: the certificate of {subject} is not valid before {_minute(start)}"


@lru_cache(maxsize=2)
def expiry(text: str) -> int:
    """Return when the first certificate in `text` expires, in seconds since the epoch. Raises
    PemError."""
    return int(certificates(text, "the certificate file")[0].not_valid_after_utc.timestamp())


def _minute(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _problem(text: str, wanted: str, other: str) -> str:
    """Describe a file that does not contain `wanted`."""
    if not text.strip():
        return "is empty"
    if f"{wanted.upper()}-----" in text:
        return f"contains a damaged or unsupported {wanted}"
    if f"{other.upper()}-----" in text:
        return f"contains a {other} instead of a {wanted}"
    return "is not in PEM format"
