"""Flags of commands that query a cluster, beyond NSQ's own tools."""

from typing import Any

from nsqcy.cluster.discovery import daemon_url
from nsqcy.cluster.web_client import Terms
from nsqcy.config.durations import SECOND
from nsqcy.config.options import BOOL, DURATION, STRING
from nsqcy.config.policies import POSITIVE
from nsqcy.errors import UsageError
from nsqcy.options.option import Option
from nsqcy.users import token_file

ADDRESSES = ("lookupd-http-address", "nsqd-http-address")
REQUESTS = (
    Option("timeout", DURATION, 5 * SECOND, "total timeout for a request", rule=POSITIVE),
    Option("tls-root-ca-file", STRING, "", "PEM file with CA certificates for HTTPS ports"),
    Option("tls-insecure-skip-verify", BOOL, False, "accept any certificate"),
    token_file.OPTION,
)


def check_addresses(flags: dict[str, Any]) -> None:
    """Raise UsageError for the first invalid address."""
    for flag in ADDRESSES:
        for address in flags[flag.replace("-", "_")]:
            try:
                daemon_url(address)
            except ValueError as error:
                raise UsageError(f"--{flag}: {error}") from None


def terms(flags: dict[str, Any]) -> Terms:
    """Return the terms of requests, from the flags in REQUESTS. Raises ConfigError if the file with
    the token cannot be read."""
    whole = flags["timeout"] / SECOND
    return Terms(
        connect_timeout=min(2.0, whole),
        request_timeout=whole,
        root_ca_file=flags["tls_root_ca_file"],
        verify=not flags["tls_insecure_skip_verify"],
        token=token_file.read(flags["auth_token_file"]),
    )
