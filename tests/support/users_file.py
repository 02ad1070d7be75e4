"""Users files for tests: users with their tokens or certificates and their permissions."""

import ssl
from dataclasses import replace
from pathlib import Path

from nsqcy.testing import certificates
from nsqcy.users.hashes import hash_token
from support.memory_http_client import trusting

IMPOSTOR = "impostor"


def token(name: str) -> str:
    """Return a user's token, which is a unique string."""
    return f"token-of-{name}"


def section(name: str, *, with_token: bool = True, **settings: str) -> str:
    lines = [f"[user {name}]", *(f"{key} = {value}" for key, value in settings.items())]
    if with_token:
        lines.append(f"token = {hash_token(token(name))}")
    return "\n".join([*lines, ""])


def write(path: Path, *sections: str) -> Path:
    path.write_text("".join(sections))
    path.chmod(0o600)
    return path


def bearer(name: str) -> dict[str, str]:
    """Return the header that authenticates a request."""
    return {"Authorization": f"Bearer {token(name)}"}


class Certificates:
    """Certificates for a server and for clients, signed by a test CA."""

    def __init__(self, folder: Path, *names: str) -> None:
        self._folder = folder
        authority = certificates.make("authority", authority=True)
        (folder / "ca.pem").write_text(authority.certificate)
        certificates.make("server").save(folder)
        for name in names:
            certificates.make(name, by=authority, names=()).save(folder)
        # The impostor's certificate has the first client's common name, but is for another name.
        impostor = certificates.make(names[0], by=authority, names=("impostor.example.com",))
        replace(impostor, name=IMPOSTOR).save(folder)

    def options(self, policy: str) -> dict[str, object]:
        """Return the options for an nsqd that requests client certificates."""
        return {
            "tls_client_auth_policy": policy,
            "tls_root_ca_file": self._folder / "ca.pem",
            "tls_cert": self._folder / "server.pem",
            "tls_key": self._folder / "server.key",
        }

    def of(self, name: str) -> ssl.SSLContext:
        """Return the TLS context for the client with this name."""
        context = trusting()
        context.load_cert_chain(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        return context
