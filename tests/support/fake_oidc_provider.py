"""Scripted OpenID Connect provider in a thread of the test. Owns one listening socket, one key and
the authorization requests. Checks PKCE as a real provider does. Knows nothing about nsqadmin.
"""

import base64
import hashlib
import json
import secrets
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from joserfc import jwt
from joserfc.jwk import ECKey


class Provider:
    """claims: changes to the claims of the next ID tokens. key: signs them."""

    def __init__(self) -> None:
        self.key = self.published = ECKey.generate_key("P-256", {"kid": "k"})
        self.claims: dict[str, Any] = {}
        self.codes: dict[str, dict[str, str]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.issuer = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def authorize(self, url: str) -> tuple[str, str]:
        """Log a user in at the URL to which a browser was sent. Return the code and the state."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        assert url.startswith(f"{self.issuer}/authorize?")
        assert (asked["response_type"], asked["code_challenge_method"]) == ("code", "S256")
        code = secrets.token_hex(8)
        self.codes[code] = asked
        return code, asked["state"]

    def get(self, path: str) -> dict[str, Any]:
        if path == "/keys":
            return {"keys": [self.published.as_dict(private=False)]}
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
        }

    def token(self, form: dict[str, str]) -> dict[str, Any]:
        asked = self.codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if asked is None or asked["code_challenge"] != challenge:
            return {"error": "invalid_grant"}
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": asked["client_id"], "sub": "1", "iat": now}
        claims |= {"exp": now + 300, "nonce": asked["nonce"]} | self.claims
        token = jwt.encode({"alg": "ES256", "kid": "k"}, claims, self.key)
        return {"access_token": "a", "token_type": "Bearer", "id_token": token}


def _handler(provider: Provider) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(provider.get(self.path))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            found = provider.token(form)
            self._answer(found, 400 if "error" in found else 200)

        def _answer(self, value: dict[str, Any], status: int = 200) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
