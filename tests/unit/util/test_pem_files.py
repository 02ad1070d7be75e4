"""Certificate and key files: refused ones, the texts of refusals, and warnings."""

import datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from nsqcy.testing.certificates import DAY, key_of, make
from nsqcy.util import pem_files
from nsqcy.util.pem_files import PemError

NOW = datetime.datetime.now(datetime.UTC)
SERVER = make("server")
LATE = make("late", expired=True)
ENCRYPTED = key_of("server", 2048).private_bytes(
    serialization.Encoding.PEM,
    serialization.PrivateFormat.PKCS8,
    serialization.BestAvailableEncryption(b"secret"),
)


def explain(certificate: str, key: str, folder: Path) -> str:
    (folder / "a.pem").write_text(certificate)
    (folder / "a.key").write_text(key)
    return pem_files.explain(f"{folder}/a.pem", f"{folder}/a.key", OSError(1, "unexplained"))


def test_a_valid_pair(tmp_path: Path) -> None:
    assert explain(SERVER.certificate, SERVER.key, tmp_path) == "unexplained"


@pytest.mark.parametrize(
    ("certificate", "key", "text"),
    [
        (
            SERVER.certificate,
            LATE.key,
            "the key in {0}/a.key does not belong to the certificate in {0}/a.pem",
        ),
        ("", SERVER.key, "{0}/a.pem is empty (allowed: a certificate in PEM format)"),
        (
            "rubbish",
            SERVER.key,
            "{0}/a.pem is not in PEM format (allowed: a certificate in PEM format)",
        ),
        (
            "-----BEGIN CERTIFICATE-----\n????\n-----END CERTIFICATE-----\n",
            SERVER.key,
            "{0}/a.pem contains a damaged or unsupported certificate"
            " (allowed: a certificate in PEM format)",
        ),
        (
            SERVER.key,
            SERVER.certificate,
            "{0}/a.pem contains a private key instead of a certificate"
            " (allowed: a certificate in PEM format)",
        ),
        (
            SERVER.certificate,
            SERVER.certificate,
            "{0}/a.key contains a certificate instead of a private key"
            " (allowed: a private key in PEM format, without a passphrase)",
        ),
        (
            SERVER.certificate,
            ENCRYPTED.decode(),
            "{0}/a.key is encrypted (allowed: a private key in PEM format, without a passphrase)",
        ),
    ],
)
def test_unusable_files(certificate: str, key: str, text: str, tmp_path: Path) -> None:
    assert explain(certificate, key, tmp_path) == text.format(tmp_path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(PemError, match=f"^open {tmp_path}/no: no such file or directory$"):
        pem_files.read(f"{tmp_path}/no")


def warnings(certificate: str, now: datetime.datetime) -> list[str]:
    chain = pem_files.certificates(certificate, "a.pem")
    return list(pem_files.validity_warnings(chain, "a.pem", now))


def test_certificates_outside_their_time_are_warnings() -> None:
    assert warnings(SERVER.certificate, NOW) == []
    (expired,) = warnings(LATE.certificate, NOW)
    assert expired.startswith("a.pem: the certificate of CN=late expired on 2")
    assert expired.endswith(" UTC")
    (early,) = warnings(SERVER.certificate, NOW - 1000 * DAY)
    assert early.startswith("a.pem: the certificate of CN=server is not valid before 2")
