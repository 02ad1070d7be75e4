"""Creates certificates for tests: CAs, servers and clients, of any age and strength."""

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


@cache
def key_of(name: str, bits: int) -> rsa.RSAPrivateKey:
    """Return the key for a name. Cached, because generating keys is slow."""
    return rsa.generate_private_key(65537, bits)


@dataclass(frozen=True)
class Identity:
    """A certificate and its key, in PEM format."""

    name: str
    certificate: str
    key: str
    bits: int = 2048

    def save(self, folder: Path) -> "Files":
        """Write both to files and return their paths."""
        files = Files(folder / f"{self.name}.pem", folder / f"{self.name}.key")
        files.certificate.write_text(self.certificate)
        files.key.write_text(self.key)
        return files


@dataclass(frozen=True)
class Files:
    certificate: Path
    key: Path

    @property
    def options(self) -> dict[str, Path]:
        """Return the options that make a daemon use this certificate."""
        return {"tls_cert": self.certificate, "tls_key": self.key}


def make(
    name: str,
    *,
    by: Identity | None = None,
    bits: int = 2048,
    expired: bool = False,
    authority: bool = False,
    names: Sequence[str] = ("localhost", "127.0.0.1"),
    common_names: Sequence[str] = (),
) -> Identity:
    """Return a certificate with this common name, signed by another identity or self-signed.

    names: its alternative names: IP addresses, e-mail addresses, URIs and DNS names
    common_names: those in addition to its name
    """
    key = key_of(name, bits)
    subject = x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, each) for each in (name, *common_names)]
    )
    issuer, signer = subject, key
    if by is not None:
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, by.name)])
        signer = key_of(by.name, by.bits)
    end = datetime.datetime.now(datetime.UTC) + (-DAY if expired else 365 * DAY)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(end - 730 * DAY)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    )
    if names and not authority:
        alternatives = x509.SubjectAlternativeName(map(_alternative_name, names))
        builder = builder.add_extension(alternatives, critical=False)
    certificate = builder.sign(signer, hashes.SHA256())
    return Identity(name, _pem(certificate), _key_pem(key), bits)


def _alternative_name(name: str) -> x509.GeneralName:
    if "://" in name:
        return x509.UniformResourceIdentifier(name)
    if "@" in name:
        return x509.RFC822Name(name)
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: rsa.RSAPrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    ).decode()
