"""Checks before nsqadmin starts: certificate files, addresses, URLs.

Problems raise StartError with NSQ's messages. Names are resolved, but no connection is made.
"""

import socket
import ssl
from datetime import UTC, datetime

from nsqcy.errors import StartError
from nsqcy.net.address_hints import LOOKUPD_HTTP, NSQD_HTTP, connect_hint
from nsqcy.net.listeners import parse
from nsqcy.nsqadmin.options import AdminOptions


def check(options: AdminOptions) -> list[str]:
    """Raise StartError if nsqadmin cannot run with these options on this machine; return
    warnings."""
    if not options.lookupd_http_address and not options.nsqd_http_address:
        raise _refusal("--nsqd-http-address or --lookupd-http-address required")
    warnings = _check_certificates(options)
    for address in options.lookupd_http_address:
        _check_address("--lookupd-http-address", address, LOOKUPD_HTTP)
    for address in options.nsqd_http_address:
        _check_address("--nsqd-http-address", address, NSQD_HTTP)
    if options.proxy_graphite:
        _check_url(options.graphite_url)
    return warnings


def _check_certificates(options: AdminOptions) -> list[str]:
    if not options.http_client_tls_cert and not options.http_client_tls_root_ca_file:
        return []
    from nsqcy.util import pem_files  # slow to import

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    cert, key = options.http_client_tls_cert, options.http_client_tls_key
    if cert:
        try:
            context.load_cert_chain(cert, key)
        except OSError as error:
            reason = pem_files.explain(cert, key, error)
            raise _refusal(f"failed to LoadX509KeyPair {cert}, {key} - {reason}") from None
    path = options.http_client_tls_root_ca_file
    if path:
        try:
            context.load_verify_locations(path)
        except ssl.SSLError:
            allowed = "a file of CA certificates in PEM format"
            raise _refusal(f"failed to AppendCertsFromPEM {path} (allowed: {allowed})") from None
        except OSError as error:
            text = f"failed to read TLS root CA file {path} - {_text(error)}"
            raise _refusal(text) from None
    now = datetime.now(UTC)
    warnings: list[str] = []
    for file in filter(None, (cert, path)):
        found = pem_files.certificates(pem_files.read(file), file)
        warnings += pem_files.validity_warnings(found, file, now)
    return warnings


def _check_address(flag: str, text: str, usual_port: int) -> None:
    address = parse(text)
    problem = ""
    if address.path is not None or not address.port:
        problem = f"address {text}: missing port in address{connect_hint(text, usual_port)}"
    elif not address.port.isdecimal():
        problem = f"lookup tcp/{address.port}: unknown port"
    else:
        try:
            socket.getaddrinfo(address.host or None, address.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError, OverflowError):
            problem = f"lookup {address.host}:{address.port}: no such host"
    if problem:
        raise _refusal(f"failed to resolve {flag} ({text}) - {problem}")


def _check_url(text: str) -> None:
    from urllib3.exceptions import LocationParseError
    from urllib3.util import parse_url

    try:
        url = parse_url(text)
    except LocationParseError:
        url = None
    if url is None or url.scheme not in ("http", "https") or not url.host:
        raise _refusal(f"failed to parse --graphite-url ({text}) - not an HTTP URL")


def _text(error: OSError) -> str:
    return error.strerror or str(error)


def _refusal(text: str) -> StartError:
    return StartError(f"failed to instantiate nsqadmin - {text}")
