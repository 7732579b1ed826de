"""Logging in by link, password or OpenID provider, and out. Every way ends in a new session, or in an audited refusal.

A log-in always makes a new session with a new secret and ends the one the browser had: a session that an attacker
planted in a browser never becomes the session of the person who logs in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from turngate.approvals_api.http.rate_limits import RateLimits
from turngate.approvals_api.settings import OidcSettings, claim_at
from turngate.domain.errors import ForbiddenError, InvalidInputError, TurngateError
from turngate.domain.identity import MAX_NAME_CHARS, Via, checked_name, checked_password, normal_password
from turngate.domain.policy.terms import Role
from turngate.store.access import access, people, sessions, users
from turngate.store.access.passwords import hash_password, verify_password
from turngate.store.database import Connection, Database
from turngate.store.events import events

if TYPE_CHECKING:  # its libraries are slow to import, and few APIs have a provider
    from turngate.approvals_api.access.oidc import OidcProvider

NAME_CLAIMS: Final = ("preferred_username", "email", "name", "sub")
"""Where a new person's name is looked for, in this order."""


@dataclass(frozen=True, kw_only=True)
class Browser:
    """The browser that logs in. ``had``: the secret of the session it has now."""

    address: str
    user_agent: str = ""
    had: str | None = None


@dataclass(frozen=True, kw_only=True)
class Login:
    """A browser's way in. Each method returns the secret of a new session."""

    database: Database
    limits: RateLimits
    browser: Browser

    async def by_link(self, secret: str) -> str | None:
        """Use up a one-time login link; returns the secret of a new session, or None when the link is no good (any more).

        Raises TooManyRequestsError.
        """
        await self.limits.count_login(self.browser.address)
        async with self.database.write() as conn:
            visitor = await access.use_link(conn, secret)
            if visitor is None:
                await _record_failure(conn, via="link", name="", address=self.browser.address)
                return None
            session = await _begin(conn, self.browser, visitor.name, role=visitor.role, via="link")
        self.limits.forgive_login(self.browser.address)
        return session

    async def by_password(self, name: str, password: str) -> str | None:
        """Return the secret of a new session, or None when name or password is wrong, or the user is disabled.

        The answer does not say which, and takes as long for a name that does not exist. Raises TooManyRequestsError.
        """
        name = name[: 2 * MAX_NAME_CHARS]  # no name is longer, and each typed one is kept for a while to be counted
        await self.limits.count_login(self.browser.address, name)
        async with self.database.read() as conn:
            user = await users.user_called(conn, name)
        stored = None if user is None or user.disabled else user.password_hash
        verified = await verify_password(stored, normal_password(password))
        async with self.database.write() as conn:
            # Hashing takes a while, in which the password may have been changed or the user disabled.
            await users.lock_identities(conn)
            now = None if user is None else await users.user_called(conn, user.name)
            if not verified.right or now is None or now.disabled or now.password_hash != stored or stored is None:
                await _record_failure(conn, via="password", name=name, address=self.browser.address)
                return None
            session = await _begin(conn, self.browser, now.name, role=now.role, via="password")
            if verified.new_hash is not None:
                await users.renew_hash(conn, now.name, old=stored, new=verified.new_hash)
        self.limits.forgive_login(self.browser.address, name)
        return session

    async def by_oidc(self, provider: OidcProvider | None, answer: Mapping[str, str], cookie: str | None) -> str:
        """Return the secret of a new session for a person who comes back from the OpenID provider.

        Raises:
            ForbiddenError: ``oidc_refused`` or ``no_role``, with what to do; or ``user_disabled``.
            ConflictError: their name is taken here.
            UnavailableError: the provider is away.
            TooManyRequestsError: too many failed from this address.
        """
        if provider is None:
            raise ForbiddenError("no OpenID provider is configured here: log in another way", code="oidc_refused")
        await self.limits.count_login(self.browser.address)
        settings, name = provider.settings, ""
        try:
            claims = await provider.finish(answer, cookie)
            name = wanted_name(claims)
            role = role_of(claims, settings)
            email = claims.get("email")
            async with self.database.write() as conn:
                user = await users.from_oidc(
                    conn,
                    users.OidcIdentity(
                        issuer=settings.issuer,
                        subject=str(claims["sub"]),
                        name=name,
                        email=email if isinstance(email, str) else "",
                        role=role,
                    ),
                )
                session = await _begin(
                    conn, self.browser, user.name, role=user.role, via="oidc", lifetime=settings.session_lifetime
                )
        except TurngateError:
            async with self.database.write() as conn:
                await _record_failure(conn, via="oidc", name=name, address=self.browser.address)
            raise
        self.limits.forgive_login(self.browser.address)
        return session

    async def change_password(self, name: str, *, current: str, wanted: str) -> str | None:
        """Give a local user another password; returns the secret of a new session, None when the current one is wrong.

        All their sessions end, this one too: one of them may be someone else's.

        Raises:
            InvalidInputError: the wanted password is too short or too long.
            ConflictError: they log in by an OpenID provider, so they have no password here.
            NotFoundError: they are no stored user (they logged in by a link).
            TooManyRequestsError: too many tries.
        """
        password = checked_password(wanted)
        await self.limits.count_login(self.browser.address, name)
        async with self.database.read() as conn:
            user = await users.existing(conn, name)
        verified = await verify_password(user.password_hash, normal_password(current))
        if not verified.right:
            async with self.database.write() as conn:
                await _record_failure(conn, via="password", name=user.name, address=self.browser.address)
            return None
        self.limits.forgive_login(self.browser.address, name)
        password_hash = await hash_password(password)
        async with self.database.write() as conn:
            await users.set_password(conn, user.name, password_hash, by=user.name)
            return await sessions.begin(
                conn, user.name, role=user.role, via="password", user_agent=self.browser.user_agent
            )


async def log_out(database: Database, secret: str) -> None:
    """End a session at once. Safe to repeat."""
    async with database.write() as conn:
        await sessions.end(conn, secret)


def role_of(claims: Mapping[str, Any], settings: OidcSettings) -> Role:
    """Return the highest role that the claim gives. Raises ForbiddenError (code ``no_role``) when it gives none."""
    claimed = claim_at(claims, settings.role_claim)
    values = {claimed} if isinstance(claimed, str) else {each for each in _listed(claimed) if isinstance(each, str)}
    ranks: tuple[tuple[Role, frozenset[str]], ...] = (
        ("admin", settings.admin_values),
        ("operator", settings.operator_values),
        ("viewer", settings.viewer_values),
    )
    for role, wanted in ranks:
        if values & wanted:
            return role
    if settings.default_role is not None:
        return settings.default_role
    has = ", ".join(sorted(values)) if values else "nothing"
    raise ForbiddenError(
        f"{urlsplit(settings.issuer).hostname} knows you, but its claim {settings.role_claim!r} ({has}) gives you no "
        "role here. Ask the administrator of this Turngate to add one of its values to TURNGATE_OIDC_VIEWER_VALUES, "
        "TURNGATE_OIDC_OPERATOR_VALUES or TURNGATE_OIDC_ADMIN_VALUES",
        code="no_role",
    )


def wanted_name(claims: Mapping[str, Any]) -> str:
    """Return the first claim that is a valid name here. Raises ForbiddenError when none is."""
    for each in NAME_CLAIMS:
        try:
            return checked_name(str(claims.get(each, "")))
        except InvalidInputError:
            continue
    raise ForbiddenError("the provider sends no name that can be shown here", code="oidc_refused")


def _listed(claimed: object) -> list[Any]:
    return claimed if isinstance(claimed, list) else []


async def _begin(
    conn: Connection,
    browser: Browser,
    name: str,
    *,
    role: Role,
    via: Via,
    lifetime: timedelta = sessions.SESSION_LIFETIME,
) -> str:
    if browser.had is not None:
        await sessions.end(conn, browser.had, reason="replaced")
    return await sessions.begin(conn, name, role=role, via=via, user_agent=browser.user_agent, lifetime=lifetime)


async def _record_failure(conn: Connection, *, via: Via, name: str, address: str) -> None:
    # What someone typed may be anyone's name, or a password: the log has the person's, or nothing.
    person = await people.find(conn, name[:MAX_NAME_CHARS])
    payload = {"via": via, "name": "" if person is None else person.id, "address": address}
    await events.append(conn, events.SYSTEM, [("login.failed", payload)])
