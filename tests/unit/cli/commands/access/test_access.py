"""`turngate user`, `token`, `session` and `login-link`: what they print, refuse and write."""

from __future__ import annotations

import asyncio
import re
import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from turngate.approvals_api.settings import OidcSettings, RateLimitSettings
from turngate.cli import stores
from turngate.cli.api_settings import api_settings
from turngate.cli.main import app
from turngate.domain.errors import ConfigurationError, MissingExtraError
from turngate.runtime.settings import load_settings
from turngate.store.access import people, sessions, tokens, users
from turngate.store.access.passwords import verify_password
from turngate.store.events import events

PASSWORD = "correct horse battery"


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, sqlite_template: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copy(sqlite_template, tmp_path / "turngate.db")
    monkeypatch.setenv("TURNGATE_DATA_DIR", str(tmp_path))
    for name in ("TURNGATE_DATABASE_URL", "TURNGATE_API_URL", "TURNGATE_PUBLIC_URL"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


pytestmark = pytest.mark.usefixtures("own_names")


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(app, [*arguments], input=stdin)


def lines(*arguments: str) -> list[list[str]]:
    answer = run(*arguments)
    assert answer.exit_code == 0, answer.output
    return [line.split("\t") for line in answer.stdout.splitlines()]


def in_store(work):
    async def opened():
        async with stores.opened_store(load_settings()) as database, database.write() as conn:
            return await work(conn)

    return asyncio.run(opened())


def test_a_user_from_the_first_day_to_the_last():
    """Added with a password by stdin, given another role and password, disabled, enabled; each is listed."""
    assert run("user", "add", "Ann", "--role", "operator", "--password-stdin", stdin=f"{PASSWORD}\n").exit_code == 0
    assert run("user", "add", "Bob", "--role", "viewer", "--no-password", "--email", "b@example.com").exit_code == 0
    assert [[each[0], each[1], each[2], each[4]] for each in lines("user", "list")] == [
        ["Ann", "operator", "password", ""],
        ["Bob", "viewer", "links", "b@example.com"],
    ]
    (stored,) = in_store(lambda conn: _hashes(conn, "Ann"))
    assert asyncio.run(verify_password(stored, PASSWORD)).right
    in_store(lambda conn: _session_of(conn, "Ann"))
    assert run("user", "role", "ann", "admin").exit_code == 0
    assert [each[1:4] for each in lines("session", "list")] == [["Ann", "admin", "link"]]
    assert run("user", "password", "ann", "--password-stdin", stdin="another long password").exit_code == 0
    assert lines("session", "list") == []
    assert run("user", "disable", "ann").exit_code == 0
    assert [each[2] for each in lines("user", "list")] == ["disabled", "links"]
    assert run("login-link", "ann").exit_code == 1
    assert run("user", "enable", "ann").exit_code == 0
    assert run("login-link", "ann").exit_code == 0


def test_a_login_link_leads_to_the_public_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """The person who opens it may be on another machine than the API."""
    monkeypatch.setenv("TURNGATE_PUBLIC_URL", "https://approvals.example.com")
    assert run("login-link", "ann").stdout.startswith("https://approvals.example.com/login?link=")


async def _session_of(conn, name):
    await sessions.begin(conn, await people.id_of(conn, name))


async def _hashes(conn, name):
    return [(await users.existing(conn, name)).password_hash]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("arguments", "stdin", "says"),
    [
        (("user", "add", "ann", "--role", "viewer", "--password-stdin"), "short\n", "at least 12"),
        (("user", "add", "ann", "--role", "viewer", "--password-stdin", "--no-password"), "", "contradict"),
        (("user", "add", "ann", "--role", "viewer"), "", "--password-stdin"),
        (("user", "add", "cli:ann", "--role", "viewer", "--no-password"), "", "are kept for"),
        (("user", "role", "zoe", "viewer"), "", "user list"),
        (("token", "bot", "--scope", "runs:write", "--scope", "requests:decide"), "", "could approve its own calls"),
        (("token", "add", "x", "--scope", "admin", "--user", "zoe"), "", "no user"),
        (("token", "revoke", "zoe"), "", "token list"),
        (("session", "revoke"), "", "--user"),
        (("session", "revoke", "ses_1"), "", "session list"),
        (("session", "revoke", "--user", "zoe"), "", "session list"),
    ],
)
def test_a_refusal_says_how_to_continue_and_changes_nothing(arguments, stdin, says):
    """The error on stderr names the fix, and the store stays as it is."""
    answer = run(*arguments, stdin=stdin)
    assert answer.exit_code in {1, 2}
    assert says in answer.stderr
    assert lines("user", "list") == lines("token", "list") == []


def test_a_token_is_bound_to_agents_directories_and_sources(tmp_path):
    """Each option repeats; a directory is stored absolute; the list and the log say what the token is bound to."""
    options = ("--agent", "triage", "--agent", "night*", "--workspace", str(tmp_path / "a" / ".."), "--source", "git")
    secret = lines("token", "ci", "--scope", "runs:write", *options, "--trust-ask")[0][0]
    (listed,) = lines("token", "list")
    assert listed[7] == f"agents triage, night*; workspaces {tmp_path}; sources git; trust-ask"

    async def bounds(conn):
        (issued,) = [each for each in await events.after(conn, 0, run_id=events.SYSTEM) if each.type == "token.issued"]
        return (await tokens.find(conn, secret)).bounds, issued.payload["bounds"]

    stored, logged = in_store(bounds)
    assert stored.model_dump() == logged
    assert logged == {
        "agents": ["triage", "night*"],
        "workspaces": [str(tmp_path)],
        "sources": ["git"],
        "trust_ask": True,
    }


def test_a_token_is_made_listed_and_revoked():
    """`turngate token NAME` and `turngate token add NAME` are the same; its secret is printed once and never listed."""
    run("user", "add", "Ann", "--role", "operator", "--no-password")
    secrets = [
        lines("token", "ci", "--scope", "runs:write")[0][0],
        lines("token", "add", "ann-laptop", "--scope", "requests:decide", "--user", "ANN", "--days", "3")[0][0],
    ]
    assert all(re.fullmatch(r"tg_[\w-]{43}", each) for each in secrets)
    listed = {each[1]: each for each in lines("token", "list")}
    assert [listed["ci"][2:4], listed["ann-laptop"][2:4]] == [["runs:write", "-"], ["requests:decide", "Ann"]]
    assert listed["ann-laptop"][6] != listed["ci"][6] == "-"
    assert not any(secret in str(listed) for secret in secrets)
    assert run("token", "revoke", listed["ci"][0]).exit_code == 0
    assert [each[1] for each in lines("token", "list")] == ["ann-laptop"]

    async def usable(conn):
        return [await tokens.find(conn, each) is not None for each in secrets]

    assert in_store(usable) == [False, True]


def test_sessions_are_revoked_one_or_all():
    """By id, or everywhere a person is logged in."""
    for name in ("ann", "ann", "bob"):
        in_store(lambda conn, name=name: sessions.begin(conn, name))
    bobs = next(each[0] for each in lines("session", "list") if each[1] == "bob")
    assert "ended 1 session\n" in run("session", "revoke", bobs).stdout
    assert "ended 2 sessions\n" in run("session", "revoke", "--user", "Ann").stdout
    assert lines("session", "list") == []


OIDC = {
    "oidc_issuer": "https://login.example/realm",
    "oidc_client_id": "turngate",
    "oidc_client_secret": "s3cret",
}


def test_the_apis_settings_come_from_the_process_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """OpenID provider, roles and idle time. The secret may be in a file."""
    of_api = api_settings(load_settings(**OIDC, oidc_admin_values="root, ops ,", session_idle_seconds=600))
    assert of_api.oidc == OidcSettings(
        issuer=OIDC["oidc_issuer"],
        client_id="turngate",
        client_secret="s3cret",
        admin_values=frozenset({"root", "ops"}),
    )
    assert "s3cret" not in repr(of_api)
    assert of_api.session_idle.total_seconds() == 600
    file = tmp_path / "secret"
    file.write_text("from a file\n")
    monkeypatch.setenv("TURNGATE_OIDC_CLIENT_SECRET_FILE", str(file))
    of_api = api_settings(load_settings(**{**OIDC, "oidc_client_secret": None}))
    assert of_api.oidc is not None
    assert of_api.oidc.client_secret == "from a file"


@pytest.mark.parametrize(
    ("more", "limits"),
    [
        ({}, RateLimitSettings()),
        ({"rate_limits": False}, RateLimitSettings(logins_per_name=None, logins_per_address=None)),
        ({"rate_limits": True}, RateLimitSettings(per_second=20.0)),
        ({"api_host": "192.0.2.1"}, RateLimitSettings(per_second=20.0)),
        (
            {"api_host": "192.0.2.1", "rate_limits": False},
            RateLimitSettings(logins_per_name=None, logins_per_address=None),
        ),
    ],
)
def test_requests_are_counted_where_others_can_reach_the_api(more, limits):
    """On loopback only failed log-ins are; a setting turns both on, or both off."""
    assert api_settings(load_settings(**more)).rate_limits == limits


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"oidc_client_id": None}, "TURNGATE_OIDC_CLIENT_ID"),
        ({"oidc_client_secret": None}, "TURNGATE_OIDC_CLIENT_SECRET"),
        ({"oidc_issuer": None}, "TURNGATE_OIDC_ISSUER"),
        ({"oidc_issuer": "http://login.example"}, "https://"),
        ({"oidc_issuer": "http://localhost.evil.example"}, "https://"),
        ({"oidc_scopes": "profile"}, "openid"),
        ({"oidc_default_role": "admin"}, "TURNGATE_OIDC_DEFAULT_ROLE"),
    ],
)
def test_half_an_openid_provider_is_refused(changes, says):
    """The error names what is missing or unsafe before anything starts. No one becomes an admin by default."""
    with pytest.raises(ConfigurationError, match=says) as refused:
        load_settings(**{**OIDC, **changes})
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("package", ["itsdangerous", "joserfc"])
def test_an_openid_provider_needs_its_extra(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without either of its packages, the settings are refused with the fix; without a provider, neither is needed."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"TURNGATE_OIDC_ISSUER.*extra 'oidc' is not installed.*pip install"):
        load_settings(**OIDC)
    assert load_settings().oidc_issuer is None


def test_a_new_store_gives_people_ids() -> None:
    """Without a word: a person is listed with an id and is Dora elsewhere, until she is erased."""
    assert run("user", "add", "Dora", "--role", "viewer", "--no-password").exit_code == 0
    ids = {each[0]: each[1] for each in lines("people", "list")}
    assert re.fullmatch(r"p-[0-9a-f]{16}", ids["Dora"])
    assert [each[0] for each in lines("user", "list")] == ["Dora"]
    assert run("erase", "dora", "--reason", "Ticket 3", "--yes").exit_code == 0
    assert f"erased person {ids['Dora'][2:8]}" in {each[0] for each in lines("people", "list")}
