"""Logging in by an OpenID provider: Authorization Code flow with PKCE, state and nonce.

What a browser brings back is believed only after all of this: it carries the cookie that began the log-in and its state;
the provider answered our own request for the code; the ID token bears a signature of one of the provider's published keys,
by an algorithm with a public key, and names this issuer, this client, this log-in's nonce and a time that fits.
Sources: OpenID Connect Core 1.0 §3.1, Discovery 1.0 §4, RFC 7636 (PKCE), RFC 9207 (``iss``), RFC 9700 (best practice).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import httpx
from itsdangerous import BadSignature, URLSafeTimedSerializer
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry, Key, KeySet

from turngate.approvals_api.settings import ATTEMPT_SECONDS, OidcSettings, claim_at
from turngate.domain.errors import ForbiddenError, UnavailableError
from turngate.http_environment import is_local, require_usable

ALGORITHMS: Final = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
    "Ed25519",
)
"""Never ``none``, and never HMAC: with it, anyone who knows the client's secret could claim to be any user."""
CLOCK_SKEW_SECONDS: Final = 60
KEEP_METADATA_SECONDS: Final = 3_600
TIMEOUT_SECONDS: Final = 10.0
_AS_JSON: Final = {"Accept": "application/json"}


@dataclass(frozen=True, kw_only=True)
class LoginAttempt:
    """What one log-in began with; it waits in the browser's signed cookie, so that any API process can end it."""

    state: str
    nonce: str
    verifier: str
    redirect_uri: str


@dataclass(frozen=True, kw_only=True)
class _Metadata:
    document: Mapping[str, Any]
    keys: KeySet
    read_at: float


class OidcProvider:
    """The one provider that a Turngate trusts. Belongs to one event loop."""

    def __init__(self, settings: OidcSettings) -> None:
        self.settings = settings
        self._metadata: _Metadata | None = None
        # Derived, not the secret itself: what signs cookies proves nothing to the provider.
        key = hmac.new(settings.client_secret.encode(), b"turngate oidc attempt v1", hashlib.sha256).hexdigest()
        self._signer = URLSafeTimedSerializer(key, salt="turngate.oidc.attempt")

    async def begin(self, redirect_uri: str) -> tuple[str, str]:
        """Return the provider's page to send the browser to, and the cookie to give it. Raises UnavailableError."""
        metadata = await self._read_metadata()
        attempt = LoginAttempt(
            state=secrets.token_urlsafe(32),
            nonce=secrets.token_urlsafe(32),
            verifier=secrets.token_urlsafe(64),
            redirect_uri=redirect_uri,
        )
        challenge = hashlib.sha256(attempt.verifier.encode("ascii")).digest()
        url = httpx.URL(metadata.document["authorization_endpoint"]).copy_merge_params(
            {
                "response_type": "code",
                "client_id": self.settings.client_id,
                "redirect_uri": redirect_uri,
                "scope": self.settings.scopes,
                "state": attempt.state,
                "nonce": attempt.nonce,
                "code_challenge": base64.urlsafe_b64encode(challenge).decode("ascii").rstrip("="),
                "code_challenge_method": "S256",
            }
        )
        return str(url), self._signer.dumps(asdict(attempt))

    async def finish(self, answer: Mapping[str, str], cookie: str | None) -> Mapping[str, Any]:
        """Return the claims about the person who comes back from the provider.

        Args:
            answer: the query the provider sent the browser back with.
            cookie: what :meth:`begin` gave this browser.

        Raises:
            ForbiddenError: ``oidc_refused``: something does not fit; the message says what to do. No one is logged in.
            UnavailableError: the provider cannot be reached.
        """
        attempt = self._attempt(answer, cookie)
        metadata = await self._read_metadata()
        if "iss" in answer or metadata.document.get("authorization_response_iss_parameter_supported") is True:
            _require(answer.get("iss") == self.settings.issuer, "the answer is from another provider")
        if "error" in answer or not answer.get("code"):
            reason = answer.get("error_description") or answer.get("error") or "no code"
            raise _refused(f"the provider did not let you in ({reason[:200]})")
        tokens = await self._tokens(metadata, answer["code"], attempt)
        claims = await self._id_claims(metadata, tokens.get("id_token"), attempt.nonce)
        if claim_at(claims, self.settings.role_claim) is None and "userinfo_endpoint" in metadata.document:
            # Many providers keep the ID token small and send groups here only.
            claims = {**await _userinfo(metadata, str(tokens.get("access_token", "")), claims["sub"]), **claims}
        return claims

    def _attempt(self, answer: Mapping[str, str], cookie: str | None) -> LoginAttempt:
        """Return the attempt that this answer belongs to: same browser, within ten minutes."""
        again = "this log-in was started in another browser or window, or more than ten minutes ago"
        try:
            attempt = LoginAttempt(**self._signer.loads(cookie or "", max_age=ATTEMPT_SECONDS))
        except (BadSignature, TypeError):
            raise _refused(again) from None
        _require(hmac.compare_digest(attempt.state.encode(), answer.get("state", "").encode()), again)
        return attempt

    async def _id_claims(self, metadata: _Metadata, id_token: object, nonce: str) -> Mapping[str, Any]:
        _require(isinstance(id_token, str), "the provider gave no ID token")
        try:
            token = jwt.decode(str(id_token), metadata.keys, algorithms=ALGORITHMS)
        except (JoseError, ValueError):
            # The provider may have changed its keys since we read them.
            fresh = await self._read_metadata(refresh=True)
            try:
                token = jwt.decode(str(id_token), fresh.keys, algorithms=ALGORITHMS)
            except (JoseError, ValueError) as error:
                raise _refused(f"the ID token is not signed as it must be ({error})") from None
        claims = token.claims
        try:
            jwt.JWTClaimsRegistry(
                leeway=CLOCK_SKEW_SECONDS,
                iss={"essential": True, "value": self.settings.issuer},
                sub={"essential": True},
                aud={"essential": True, "value": self.settings.client_id},
                exp={"essential": True},
                iat={"essential": True},
                nonce={"essential": True, "value": nonce},
            ).validate(claims)
        except JoseError as error:
            raise _refused(f"the ID token is not for this log-in ({error})") from None
        several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        azp = claims.get("azp", None if several else self.settings.client_id)
        _require(azp == self.settings.client_id, "the ID token was made for another program")
        return claims

    async def _tokens(self, metadata: _Metadata, code: str, attempt: LoginAttempt) -> Mapping[str, Any]:
        """Return what the provider gives for the code (RFC 6749 §4.1.3)."""
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "code_verifier": attempt.verifier,
            "redirect_uri": attempt.redirect_uri,
        }
        login = (self.settings.client_id, self.settings.client_secret)
        methods = metadata.document.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        is_basic = "client_secret_basic" in methods
        if not is_basic:
            form |= dict(zip(("client_id", "client_secret"), login, strict=True))
        try:
            async with httpx.AsyncClient(timeout=TIMEOUT_SECONDS, auth=login if is_basic else None) as client:
                answer = await client.post(metadata.document["token_endpoint"], data=form, headers=_AS_JSON)
            if answer.is_server_error:
                answer.raise_for_status()
            tokens = answer.json()
        except (httpx.HTTPError, ValueError, RecursionError) as error:
            raise _away(error) from None
        if not isinstance(tokens, dict):
            raise _away(TypeError())
        if "error" in tokens:
            reason = str(tokens.get("error_description") or tokens["error"])[:200]
            raise _refused(f"the provider did not take the code ({reason})")
        return tokens

    async def _read_metadata(self, *, refresh: bool = False) -> _Metadata:
        cached = self._metadata
        if cached is not None and not refresh and time.monotonic() - cached.read_at < KEEP_METADATA_SECONDS:
            return cached
        issuer = self.settings.issuer
        require_usable()
        async with httpx.AsyncClient(timeout=TIMEOUT_SECONDS) as client:
            document = await _json(client, f"{issuer.rstrip('/')}/.well-known/openid-configuration")
            if document.get("issuer") != issuer:
                raise UnavailableError(
                    f"the provider calls itself {str(document.get('issuer'))[:200]!r}, not {issuer!r}: "
                    "set TURNGATE_OIDC_ISSUER exactly as it does"
                )
            for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
                _require_safe_url(name, document.get(name))
            keys = _key_set(await _json(client, document["jwks_uri"]))
        self._metadata = _Metadata(document=document, keys=keys, read_at=time.monotonic())
        return self._metadata


async def _userinfo(metadata: _Metadata, access_token: str, subject: str) -> Mapping[str, Any]:
    endpoint = metadata.document["userinfo_endpoint"]
    _require_safe_url("userinfo_endpoint", endpoint)
    headers = {"Authorization": f"Bearer {access_token}"}
    async with httpx.AsyncClient(timeout=TIMEOUT_SECONDS, headers=headers) as client:
        document = await _json(client, endpoint)
    # OpenID Connect Core 1.0 §5.3.2: else it may be about someone else.
    _require(document.get("sub") == subject, "the provider sent claims about someone else")
    return document


async def _json(client: httpx.AsyncClient, url: str) -> Mapping[str, Any]:
    try:
        answer = await client.get(url, headers=_AS_JSON)
        answer.raise_for_status()
        document = answer.json()
    except (httpx.HTTPError, ValueError, RecursionError) as error:
        raise _away(error) from None
    if not isinstance(document, dict):
        raise UnavailableError(f"the OpenID provider's answer from {url} is not a JSON object")
    return document


def _key_set(document: Mapping[str, Any]) -> KeySet:
    """Return the keys we can use; a provider may publish kinds of keys that we don't know."""
    keys: list[Key] = []
    for each in document.get("keys", []):
        if not isinstance(each, dict) or each.get("use", "sig") != "sig" or each.get("kty") == "oct":
            continue
        try:
            keys.append(JWKRegistry.import_key(each))
        except (JoseError, ValueError):
            continue
    return KeySet(keys)


def _require_safe_url(name: str, url: object) -> None:
    try:
        parts = httpx.URL(url if isinstance(url, str) else "")
    except (httpx.InvalidURL, ValueError):
        parts = httpx.URL()
    if parts.scheme != "https" and not (parts.scheme == "http" and is_local(str(parts))):
        raise UnavailableError(f"the OpenID provider's {name} is {str(url)[:200]!r}, but must be an https address")


def _require(good: bool, otherwise: str) -> None:
    if not good:
        raise _refused(otherwise)


def _refused(what: str) -> ForbiddenError:
    return ForbiddenError(f"{what}: go to the log-in page and start again", code="oidc_refused")


def _away(error: Exception) -> UnavailableError:
    return UnavailableError(
        f"the OpenID provider cannot be reached, or its answer is unusable ({type(error).__name__})"
    )
