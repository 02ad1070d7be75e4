"""Flags of commands that query a cluster, beyond NSQ's own tools."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import click

from nsqcy.cluster.discovery import daemon_url, trust_in
from nsqcy.cluster.web_client import Terms
from nsqcy.config.durations import SECOND
from nsqcy.config.options import BOOL, DURATION, STRING
from nsqcy.config.policies import POSITIVE
from nsqcy.options.option import Option
from nsqcy.users import token_file

ADDRESSES = ("lookupd-http-address", "nsqd-http-address")
FLAGS = tuple(each.replace("-", "_") for each in ADDRESSES)
# Environment variables that replace flags that are not set. Addresses are separated by
# white space.
ENVIRONMENT = {
    "lookupd_http_address": "NSQCY_LOOKUPD_HTTP_ADDRESS",
    "nsqd_http_address": "NSQCY_NSQD_HTTP_ADDRESS",
}
REQUESTS = (
    Option("timeout", DURATION, 5 * SECOND, "total timeout for a request", rule=POSITIVE),
    Option("tls-root-ca-file", STRING, "", "PEM file with CA certificates for HTTPS ports"),
    Option("tls-insecure-skip-verify", BOOL, False, "accept any certificate"),
    token_file.OPTION,
    token_file.TRUST,
)


def complete(flags: dict[str, Any], environment: Mapping[str, str] = os.environ) -> None:
    """Set flags that are not given from the environment. Raises click.UsageError for the first
    invalid address."""
    for name, variable in ENVIRONMENT.items():
        if not flags[name] and (value := environment.get(variable, "").strip()):
            flags[name] = tuple(value.split())
    _check_addresses(flags)


def _check_addresses(flags: Mapping[str, Any]) -> None:
    for flag, name in zip(ADDRESSES, FLAGS, strict=True):
        for address in flags[name]:
            try:
                daemon_url(address)
            except ValueError as error:
                raise click.UsageError(f"--{flag}: {error}") from None


def terms(flags: dict[str, Any], addresses: Sequence[str] = ()) -> Terms:
    """Return the settings of requests, from the flags in REQUESTS. addresses: those to query if the
    flags contain none. Raises ConfigError if the file with the token cannot be read."""
    named = [each for flag in FLAGS for each in flags[flag]] or addresses
    whole = flags["timeout"] / SECOND
    return Terms(
        connect_timeout=min(2.0, whole),
        request_timeout=whole,
        root_ca_file=flags["tls_root_ca_file"],
        verify=not flags["tls_insecure_skip_verify"],
        token=token_file.of_command(flags["auth_token_file"]),
        trust=trust_in(lambda: named, all_listed=flags["trust_lookupd"]),
    )
