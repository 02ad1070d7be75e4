"""Reads a daemon's configuration: errors in the file, requirements for the host, and the addresses
of the cluster."""

from collections.abc import Mapping, Sequence
from importlib import import_module

from nsqcy.config import configuration_file
from nsqcy.config.loader import Settings
from nsqcy.config.options import OptionTable
from nsqcy.doctor.facts import ConfigFile, CopiesOptions, Wanted
from nsqcy.doctor.look_cluster import Addresses
from nsqcy.errors import StartError
from nsqcy.etcd.client import parse_endpoint
from nsqcy.names import host_port
from nsqcy.net import listeners
from nsqcy.options.option import Value

USUAL_LOOKUPD, USUAL_NSQD = "127.0.0.1:4161", "127.0.0.1:4151"
USUAL_ADMIN = "127.0.0.1:4171"
LOOKUPD_PORT = 4161  # default HTTP port of nsqlookupd
NOT_DURABLE = "memory"
EVERYWHERE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


def read(path: str, daemon: str) -> tuple[Settings, ConfigFile | None]:
    """Return a daemon's settings and the state of their file; the settings are defaults if the file
    cannot be read. An empty `daemon` means the daemon in the file."""
    if not path:
        return Settings(_table(daemon or "nsqd"), {}), None
    try:
        daemon = daemon or configuration_file.daemon_of(configuration_file.read_text(path))
        table = _table(daemon)
        file = configuration_file.read_file(table, path)
        settings = Settings(table, {}, file)
        _module(daemon).resolve(settings)
    except StartError as error:
        table = _table(daemon or "nsqd")
        return Settings(table, {}), ConfigFile(path, table.daemon, error=str(error))
    count = sum(len(section.values) for section in (file, *file.patterns))
    return settings, ConfigFile(path, daemon, count, warnings=settings.warnings)


def wanted(settings: Settings) -> Wanted:
    """Return the requirements for the host."""
    values, daemon = settings.values, settings.table.daemon
    if daemon != "nsqd":
        return Wanted(daemon)
    classes = {values["durability"], *(each.values.get("durability") for each in settings.patterns)}
    return Wanted(
        daemon,
        workers=_int(values["workers"]),
        memory_bytes=_int(values["memory_bytes"]),
        min_free_disk=_int(values["min_free_disk"]),
        copies=_copies(values),
        durable=bool(classes - {NOT_DURABLE, None}),
    )


def _copies(values: Mapping[str, Value]) -> CopiesOptions | None:
    """Return the options for copies; None without etcd."""
    hosts = []
    for endpoint in _texts(values["etcd_endpoints"]):
        try:
            hosts.append(parse_endpoint(endpoint).host or "")
        except ValueError:
            hosts.append(endpoint)
    if not hosts:
        return None
    advertised = values["copies_broadcast_address"] or values["broadcast_address"]
    protected = bool(values["copies_secret_file"] or values["copies_tls_cert"])
    return CopiesOptions(hosts, str(advertised), protected)


def addresses(settings: Settings, *, given: bool) -> Addresses:
    """Return the addresses of the daemon's cluster. given: a configuration file exists."""
    values = settings.values
    if not given:
        return Addresses([USUAL_LOOKUPD], [USUAL_NSQD], assumed=True)
    match settings.table.daemon:
        case "nsqadmin":
            return Addresses(
                _texts(values["lookupd_http_address"]), _texts(values["nsqd_http_address"])
            )
        case "nsqlookupd":
            return Addresses(_here(str(values["http_address"])), assumed=True)
        case _:
            lookupds = [_usual_http(each) for each in _texts(values["lookupd_tcp_address"])]
            return Addresses(lookupds, _here(str(values["http_address"])), assumed=True)


def admins(settings: Settings, *, given: bool) -> Sequence[str]:
    """Return the addresses of nsqadmins on this host."""
    if not given:
        return [USUAL_ADMIN]
    if settings.table.daemon != "nsqadmin":
        return []
    return _here(str(settings.values["http_address"]))


def _here(text: str) -> list[str]:
    """Return the local address at which to query a listen address."""
    address = listeners.parse(text)
    if address.path is not None or not address.port.isdecimal():
        return []
    return [host_port(EVERYWHERE.get(address.host, address.host), int(address.port))]


def _usual_http(tcp_address: str) -> str:
    return host_port(listeners.parse(tcp_address).host, LOOKUPD_PORT)


def _module(daemon: str):  # type: ignore[no-untyped-def]
    return import_module(f"nsqcy.{daemon}.options")


def _table(daemon: str) -> OptionTable:
    table = getattr(_module(daemon), daemon.upper())
    assert isinstance(table, OptionTable)
    return table


def _int(value: Value) -> int:
    assert isinstance(value, int)
    return value


def _texts(value: Value) -> Sequence[str]:
    assert isinstance(value, tuple)
    return [str(each) for each in value]
