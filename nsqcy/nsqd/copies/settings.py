"""Settings for copies, from nsqd's options and the files in them.

The master checks the settings at startup and passes the secrets on. A worker that is restarted
later therefore does not depend on files that may no longer exist.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gevent import ssl

from nsqcy.cluster.web_client import Terms
from nsqcy.config import configuration_file
from nsqcy.config.durations import SECOND
from nsqcy.copies.ports import Limits
from nsqcy.errors import StartError
from nsqcy.etcd.client import Credentials, EtcdClient, parse_endpoint
from nsqcy.logging.types import Lines
from nsqcy.names import quote
from nsqcy.net import listeners
from nsqcy.nsqd.copies.copy_files import FOLDER
from nsqcy.nsqd.copies.file_formats import numbers
from nsqcy.nsqd.copies.node import machine_id
from nsqcy.nsqd.copies.readable import await_readable
from nsqcy.nsqd.copies.scrubber import PAUSE
from nsqcy.nsqd.options import NsqdOptions

if TYPE_CHECKING:
    from OpenSSL import SSL


@dataclass(frozen=True)
class CopiesSettings:
    """One worker's settings (`nsqcy.nsqd.copies.host.Settings`)."""

    cluster: str
    limits: Limits
    listen: tuple[str, int]
    advertise: str
    zone: str
    token: str
    server_tls: "SSL.Context | None"
    client_tls: ssl.SSLContext | None
    scrub_rate: int = 0
    scrub_pause: float = PAUSE


def prepare(
    options: NsqdOptions, log: Lines, is_stopping: Callable[[], bool] = lambda: False
) -> dict[str, str]:
    """Check all settings for copies. Return what every worker needs in addition to the options: the
    secrets, and this machine's id. Blocks while the disk cannot be read. Raises StartError."""
    folder = Path(options.data_path) / FOLDER
    try:
        await_readable(folder, log, is_stopping)
        for each, number, path in numbers(folder):
            each.check(number, str(path))
        secrets = {
            "machine": machine_id(folder, log),
            "token": _read(options.copies_secret_file),
            "password": etcd_password(options),
        }
        settings(options, secrets, 0)
        etcd(options, secrets)
    except (OSError, ValueError) as error:
        raise StartError(f"failed to instantiate nsqd - copies: {error}") from None
    return secrets


def settings(options: NsqdOptions, secrets: dict[str, Any], worker: int) -> CopiesSettings:
    """Return a worker's settings. Raises ValueError and OSError."""
    host, port = _address(options.copies_address, options.workers)
    server, client = _tls(options)
    return CopiesSettings(
        cluster=options.cluster,
        limits=Limits(
            lease=options.copies_lease / SECOND,
            copy_timeout=options.copies_timeout / SECOND,
            alive_interval=min(1.0, options.copies_timeout / SECOND / 4),
            unclaimed_timeout=3 * options.copies_lease / SECOND,
        ),
        listen=(host, port + worker if port else 0),
        advertise=options.copies_broadcast_address or options.broadcast_address,
        zone=options.topology_zone,
        token=secrets["token"],
        server_tls=server,
        client_tls=client,
        scrub_rate=options.copies_scrub_rate,
    )


def etcd_password(options: NsqdOptions) -> str:
    """Return the password in --etcd-password-file; empty if the option is unset. Raises
    StartError."""
    return _read(options.etcd_password_file)


def etcd(options: NsqdOptions, secrets: dict[str, Any]) -> EtcdClient:
    """Return a client for etcd. Raises ValueError for an invalid endpoint."""
    lease = options.copies_lease / SECOND
    terms = Terms(
        connect_timeout=min(2.0, lease / 5),
        request_timeout=min(5.0, lease / 4),
        root_ca_file=options.etcd_ca_file,
        cert_file=options.etcd_cert_file,
        key_file=options.etcd_key_file,
    )
    credentials = None
    if options.etcd_user:
        credentials = Credentials(options.etcd_user, secrets["password"])
    return EtcdClient([parse_endpoint(each) for each in options.etcd_endpoints], terms, credentials)


def _address(text: str, workers: int) -> tuple[str, int]:
    """Return the host, and worker 0's port."""
    address = listeners.parse(text)
    if address.path is not None or not address.port.isdecimal() or int(address.port) > 65535:
        raise ValueError(f"invalid --copies-address {quote(text)}: expected host:port")
    port = int(address.port)
    if port and port + workers > 65536:
        raise ValueError(
            f"invalid --copies-address {quote(text)}: worker {workers - 1} would listen on port"
            f" {port + workers - 1} (allowed: up to 65535)"
        )
    return address.host, port


def _read(path: str) -> str:
    return configuration_file.read_text(path).strip() if path else ""


def _tls(options: NsqdOptions) -> "tuple[SSL.Context | None, ssl.SSLContext | None]":
    """Return the TLS contexts for accepted and for opened connections.

    Node certificates need not contain the nodes' addresses: a CA that signs certificates only for
    this purpose determines which hosts are nodes.
    """
    given = (options.copies_tls_cert, options.copies_tls_key, options.copies_tls_root_ca_file)
    if not any(given):
        return None, None
    if not all(given):
        raise ValueError(
            "--copies-tls-cert, --copies-tls-key and --copies-tls-root-ca-file must be set together"
        )
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.minimum_version = ssl.TLSVersion.TLSv1_2
    client.check_hostname = False
    client.verify_mode = ssl.CERT_REQUIRED
    _load_files(client, *given)
    from nsqcy.nsqd import tls  # it imports OpenSSL

    return tls.of_nodes(*given), client


def _load_files(context: ssl.SSLContext, certificate: str, key: str, root_ca: str) -> None:
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:
        from nsqcy.util import pem_files  # slow to import

        raise ValueError(pem_files.explain(certificate, key, error)) from None
    try:
        context.load_verify_locations(root_ca)
    except OSError as error:
        raise ValueError(f"{root_ca}: {error.strerror or error}") from None
