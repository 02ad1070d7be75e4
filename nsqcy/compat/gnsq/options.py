"""Translation of gnsq's constructor arguments into nsqcy.client's."""

from collections.abc import Iterable, Mapping
from typing import Any

TCP_TIMEOUT = 60.0  # gnsq's maximum time to wait for a connection


def addresses(given: str | Iterable[str]) -> tuple[str, ...]:
    """Raise TypeError for arguments that gnsq does not have."""
    if isinstance(given, str):
        return (given,)
    if isinstance(given, list | tuple | set):
        return tuple(given)
    raise TypeError("addresses must be a str, or a list, set or tuple of strs")


def connection_options(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return the TLS options for nsqcy.client. Unlike in gnsq, server certificates are verified
    unless `cert_reqs` specifies otherwise; host names are not."""
    options = {"timeout": TCP_TIMEOUT, **keywords}
    if isinstance(options.get("auth_secret"), bytes):
        options["auth_secret"] = options["auth_secret"].decode()
    tls = options.get("tls_options")
    if options.get("tls_v1") and (tls is None or isinstance(tls, Mapping)):
        tls = {"check_hostname": False, **(tls or {})}
        tls.pop("ssl_version", None)
        options["tls_options"] = tls
    return options
