"""Log-in through an OpenID Connect provider: authorization code flow with PKCE, state and nonce.

Owns the attempts in progress and all communication with the provider. Needs Authlib, so only
main.py imports this module, and only if a provider is configured. Sessions belong to logins.py.
"""

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from typing import Any, NamedTuple

import requests
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.requests_client import OAuth2Session
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet
from joserfc.jwt import JWTClaimsRegistry
from requests.adapters import HTTPAdapter
from urllib3 import HTTPResponse

from nsqcy.nsqadmin.auth.provider import Refused
from nsqcy.users.user import OPERATE, VIEW, User

DISCOVERY = "/.well-known/openid-configuration"
# excludes `none` and algorithms with shared secrets
ALGORITHMS = ["RS256", "PS256", "ES256", "EdDSA"]
MAX_ANSWER = 1 << 20  # bytes
PIECE = 1 << 16
TIMEOUT = 10  # maximum seconds for one request to the provider
MAX_ATTEMPTS = 1000
MAX_AGE = 600.0  # maximum seconds from the start of an attempt to its end
LEEWAY = 60  # seconds by which the provider's clock may differ


class Settings(NamedTuple):
    """operate, view: values of the role claim that give the role. secret: empty for a client
    without one. redirect: URL of nsqadmin's callback."""

    issuer: str
    client_id: str
    secret: str
    redirect: str
    name_claim: str
    role_claim: str
    operate: Sequence[str]
    view: Sequence[str]


class _Attempt(NamedTuple):
    nonce: str
    verifier: str
    there: str
    begun: float


class Provider:
    """The provider and the attempts to log in with it. Thread-safe."""

    def __init__(
        self, settings: Settings, clock: Callable[[], float], time: Callable[[], float]
    ) -> None:
        """clock: monotonic seconds. time: seconds since 1970."""
        self._settings = settings
        self._clock = clock
        self._time = time
        self._lock = threading.Lock()
        # attempts by state, the oldest first
        self._attempts: OrderedDict[str, _Attempt] = OrderedDict()

    def begin(self, there: str) -> tuple[str, str]:
        """Begin an attempt that leads to the path `there`. Return the provider's URL and the
        state, which the browser must return. Raises Refused."""
        state, nonce = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        verifier = secrets.token_urlsafe(48)
        with self._session() as session:
            place = _https_like(self._settings.issuer, self._discover(session), "authorization")
            url, _ = session.create_authorization_url(
                place, state=state, nonce=nonce, code_verifier=verifier
            )
        with self._lock:
            self._attempts[state] = _Attempt(nonce, verifier, there, self._clock())
            while len(self._attempts) > MAX_ATTEMPTS:
                self._attempts.popitem(last=False)
        return str(url), state

    def finish(self, state: str, kept: str, code: str) -> tuple[User, str]:
        """Finish an attempt. Return the user and the path to show. kept: the state that the
        browser has stored since the attempt began. Raises Refused."""
        attempt = self._take(state, kept)
        if not code:
            raise Refused("the provider sent no code")
        claims = self._claims(attempt, code)
        name = claims.get(self._settings.name_claim)
        if not isinstance(name, str) or not name.isprintable() or not name:
            raise Refused(f"the ID token has no {self._settings.name_claim} claim")
        return User(name, self._role(claims)), attempt.there

    def _take(self, state: str, kept: str) -> _Attempt:
        if not state or not secrets.compare_digest(_bytes(state), _bytes(kept)):
            raise Refused("the state belongs to another browser")
        with self._lock:
            attempt = self._attempts.pop(state, None)
        if attempt is None or self._clock() - attempt.begun > MAX_AGE:
            raise Refused("the attempt is unknown or too old")
        return attempt

    def _claims(self, attempt: _Attempt, code: str) -> Mapping[str, Any]:
        """Return the claims of the ID token for a code."""
        issuer, client_id = self._settings.issuer, self._settings.client_id
        with self._session() as session:
            found = self._discover(session)
            try:
                answer = session.fetch_token(
                    _https_like(issuer, found, "token"),
                    code=code,
                    code_verifier=attempt.verifier,
                    timeout=TIMEOUT,
                )
                keys = KeySet.import_key_set(
                    _get(session, _https_like(issuer, found, "jwks"))  # type: ignore[arg-type]
                )
                token = jwt.decode(answer["id_token"], keys, algorithms=ALGORITHMS)
                JWTClaimsRegistry(
                    now=int(self._time()),
                    leeway=LEEWAY,
                    iss={"essential": True, "value": issuer},
                    aud={"essential": True, "value": client_id},
                    exp={"essential": True},
                    iat={"essential": True},
                    sub={"essential": True},
                    nonce={"essential": True, "value": attempt.nonce},
                ).validate(token.claims)
            except (AuthlibBaseError, JoseError, requests.RequestException) as error:
                raise Refused(f"{type(error).__name__}: {error}") from None
            except (KeyError, TypeError, ValueError, RecursionError) as error:
                raise Refused(f"unreadable answer from the provider: {error!r}") from None
        if token.claims.get("azp", client_id) != client_id:
            raise Refused("the ID token is for another client")
        return token.claims

    def _role(self, claims: Mapping[str, Any]) -> str:
        """Return the role of the user. Raises Refused if there is none."""
        given = claims.get(self._settings.role_claim)
        values = given if isinstance(given, list) else [given]
        if any(each in self._settings.operate for each in values):
            return OPERATE
        if any(each in self._settings.view for each in values):
            return VIEW
        raise Refused(f"no value of the {self._settings.role_claim} claim grants a role")

    def _session(self) -> Any:
        session = OAuth2Session(
            self._settings.client_id,
            self._settings.secret or None,
            token_endpoint_auth_method="client_secret_basic" if self._settings.secret else "none",
            scope="openid profile email",
            redirect_uri=self._settings.redirect,
            code_challenge_method="S256",
        )
        for scheme in ("http://", "https://"):
            session.mount(scheme, _Adapter(self._clock))
        return session

    def _discover(self, session: Any) -> Mapping[str, Any]:
        found = _get(session, self._settings.issuer.rstrip("/") + DISCOVERY)
        if found.get("issuer") != self._settings.issuer:
            raise Refused(f"the provider reports the issuer {found.get('issuer')!r}")
        return found


class _Adapter(HTTPAdapter):
    """Reads a response of limited size before a deadline, and follows no redirect: a request may
    contain nsqadmin's secret."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock

    def send(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        deadline = self._clock() + TIMEOUT
        request.headers["Accept-Encoding"] = "identity"
        answer = super().send(request, *args, **kwargs)
        if answer.is_redirect:
            answer.close()
            raise requests.TooManyRedirects("got a redirect; redirects are not followed")
        pieces, size = [], 0
        while piece := answer.raw.read1(PIECE, decode_content=False):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_ANSWER or self._clock() > deadline:
                answer.close()
                raise requests.RequestException(
                    f"the response has more than {MAX_ANSWER} bytes, or takes too long"
                )
        answer.close()
        answer.raw = HTTPResponse(BytesIO(b"".join(pieces)), preload_content=False)
        return answer


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _get(session: Any, url: str) -> dict[str, Any]:
    try:
        answer = session.get(url, withhold_token=True, timeout=TIMEOUT)
        answer.raise_for_status()
        found = answer.json()
    except (requests.RequestException, ValueError, RecursionError) as error:
        raise Refused(f"{url}: {error}") from None
    if not isinstance(found, dict):
        raise Refused(f"{url}: not a JSON object")
    return found


def _https_like(issuer: str, found: Mapping[str, Any], name: str) -> str:
    """Return one of the provider's addresses. A provider with HTTPS uses only HTTPS."""
    url = found.get("jwks_uri" if name == "jwks" else f"{name}_endpoint")
    scheme = issuer.partition("://")[0]
    if not isinstance(url, str) or not url.startswith((f"{scheme}://", "https://")):
        raise Refused(f"the provider has no valid {name} address")
    return url
