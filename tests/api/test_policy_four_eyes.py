"""A second admin confirms stored rules that may loosen: over HTTP, on the policy page without JavaScript, in a terminal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.api.api_server import serving, token_for
from support.pages.html_forms import PostedPage
from support.pages.html_text import ShownText
from support.stores.users import added
from temporalio.client import Client
from typer.testing import CliRunner

from turngate.approvals_api.app import create_app
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.http.authentication import SESSION_COOKIE
from turngate.approvals_api.settings import ApiSettings
from turngate.cli.main import app as cli
from turngate.runtime.temporal_client import data_converter
from turngate.store.access import people, sessions, tokens
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.policy import policies

ALLOW = '[[rule]]\nname = "open"\nverdict = "allow"\ntools = ["pay"]\n'
DENY = '[[rule]]\nname = "closed"\nverdict = "deny"\ntools = ["drop"]\n'

Admin = Callable[[str], Awaitable[httpx.AsyncClient]]


async def application(database: Database, *, four_eyes: bool = True) -> Any:
    nowhere = await Client.connect("127.0.0.1:1", lazy=True, data_converter=data_converter())
    # Without its lifespan, whose loops have nothing to do here.
    return create_app(database=database, gateway=Gateway(nowhere), settings=ApiSettings(policy_four_eyes=four_eyes))


def client_of(app: Any, **options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1", **options)


@pytest.fixture
async def admin(database: Database) -> AsyncIterator[Admin]:
    """Makes the browser of an admin."""
    app = await application(database)
    async with AsyncExitStack() as browsers:

        async def log_in(name: str) -> httpx.AsyncClient:
            async with database.write() as conn:
                secret = await sessions.begin(conn, await people.id_of(conn, name), role="admin")
            headers = {"Sec-Fetch-Site": "same-origin", "Origin": "http://127.0.0.1"}
            return await browsers.enter_async_context(client_of(app, cookies={SESSION_COOKIE: secret}, headers=headers))

        yield log_in


async def owner_token(database: Database, local_user: str) -> str:
    """The secret of the commands of a stack's owner."""
    async with database.write() as conn:
        return await tokens.issue_owner_token(conn, local_user)


async def put(client: httpx.AsyncClient, source: str, version: int, **options: Any) -> dict[str, Any]:
    answer = await client.put("/api/v1/policy", json={"source": source, "if_version": version}, **options)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def answer(client: httpx.AsyncClient, verb: str, number: int, **options: Any) -> tuple[int, str]:
    got = await client.post(f"/api/v1/policy/{verb}", json={"proposal": number}, **options)
    return got.status_code, got.json().get("code", "")


async def in_force(database: Database) -> tuple[int, str]:
    """What workers read: the version and its text."""
    async with database.read() as conn:
        newest, (version, _granted) = await policies.newest(conn), await policies.glance(conn)
    assert version == (0 if newest is None else newest.version)
    return (0, "") if newest is None else (newest.version, newest.source)


async def recorded(database: Database) -> list[tuple[str, str]]:
    async with database.read() as conn:
        assert await events.chain_break(conn, events.SYSTEM) is None
        log = await events.after(conn, 0, run_id=events.SYSTEM)
    return [(each.type, each.payload["by"]) for each in log if each.type.startswith("policy.")]


async def test_i2_what_may_loosen_waits_for_a_second_admin(database: Database, admin: Admin) -> None:
    """I2: no worker reads it before; the proposer can't confirm it; the version is the proposer's, the log names both."""
    ann, bob = await admin("ann"), await admin("bob")
    proposed = await put(ann, ALLOW, 0)
    assert (proposed["proposal"], proposed["version"], proposed["changed_by"]) == (1, 1, "ann")
    assert await put(ann, ALLOW, 0) == proposed  # its answer was lost, so it is sent again
    assert await in_force(database) == (0, "")
    policy = (await bob.get("/api/v1/policy")).json()
    assert (policy["version"], policy["stored"], policy["proposed"]["added"]) == (0, None, ["open"])
    assert "allows calls" in policy["proposed"]["why"]
    assert await answer(ann, "confirm", 1) == (403, "own_proposal")
    assert await in_force(database) == (0, "")
    assert await answer(bob, "confirm", 1) == (200, "")
    assert await in_force(database) == (1, ALLOW)
    assert await answer(bob, "confirm", 1) == (409, "proposal_ended")
    assert (await bob.get("/api/v1/policy")).json()["proposed"] is None
    assert await recorded(database) == [
        ("policy.proposed", "ann"), ("policy.confirmed", "bob"), ("policy.changed", "ann")
    ]  # fmt: skip
    async with database.read() as conn:
        (change,) = [each.payload for each in await events.after(conn, 0) if each.type == "policy.changed"]
    assert (change["confirmed_by"], change["added"]) == ("bob", ["open"])


async def test_i10_one_person_is_not_two(database: Database, admin: Admin) -> None:
    """I10: Ann's terminal and Ann's tokens are Ann; a token without a user neither proposes nor confirms; an operator neither."""
    await added(database, "bob", "admin")
    user = await added(database, "ann", "admin")
    async with database.write() as conn:
        owned = tokens.NewToken(name="laptop", scopes=("admin",), owner=user.name)
        of_ann = {"Authorization": f"Bearer {await tokens.issue(conn, owned)}"}
    terminal = {"Authorization": f"Bearer {await owner_token(database, 'Ann')}"}
    machine = await token_for(database, "deploy-bot", "admin")
    operator = await token_for(database, "op", "requests:decide", "requests:read")
    ann = await admin("ann")
    await put(ann, ALLOW, 0)
    async with client_of(await application(database)) as other:
        for headers, code in (
            (of_ann, "own_proposal"), (terminal, "own_proposal"), (machine, "needs_person"), (operator, "missing_scope"),
        ):  # fmt: skip
            assert await answer(other, "confirm", 1, headers=headers) == (403, code)
        assert await answer(other, "refuse", 1, headers=operator) == (403, "missing_scope")
        body = {"source": ALLOW + DENY, "if_version": 0}
        refused = await other.put("/api/v1/policy", json=body, headers=machine)
        assert (refused.status_code, refused.json()["code"]) == (403, "needs_person")
        assert (await put(other, ALLOW + DENY, 0, headers=terminal))["proposal"] == 2
        assert await answer(ann, "confirm", 2) == (403, "own_proposal")
        assert await in_force(database) == (0, "")
        assert (await put(other, DENY, 0, headers=machine))["proposal"] is None  # it only tightens


async def test_what_only_tightens_takes_effect_at_once(database: Database, admin: Admin) -> None:
    """It supersedes a proposal that waits, as does a newer one; removing it again waits; every way to store goes there."""
    ann, bob = await admin("ann"), await admin("bob")
    await put(ann, ALLOW, 0)
    assert (await put(ann, DENY, 0))["proposal"] is None
    assert await in_force(database) == (1, DENY)
    assert await answer(bob, "confirm", 1) == (409, "proposal_ended")
    assert (await put(ann, "", 1))["proposal"] == 2
    shadow = await ann.post("/api/v1/policy/rules", json={"rule": ALLOW, "mode": "shadow"})
    assert (shadow.json()["version"], shadow.json()["proposal"]) == (2, None)
    enforced = await ann.post("/api/v1/policy/enforce", json={"name": "open"})
    assert (enforced.json()["version"], enforced.json()["proposal"]) == (3, 3)
    stored = await ann.post("/api/v1/policy/rules", json={"rule": ALLOW, "mode": "enforce"})
    assert stored.json()["proposal"] == 3  # the same rules
    assert await answer(bob, "confirm", 2) == (409, "proposal_ended")
    assert await answer(bob, "confirm", 3) == (200, "")
    back = await ann.post("/api/v1/policy/revert", json={"version": 1})
    assert (back.json()["version"], back.json()["proposal"]) == (4, None)  # without the allow rule
    back = await ann.post("/api/v1/policy/revert", json={"version": 3})
    assert (back.json()["version"], back.json()["proposal"]) == (5, 4)
    assert (await in_force(database))[0] == 4
    assert await answer(ann, "refuse", 4) == (200, "")  # withdrawn
    assert await answer(bob, "confirm", 4) == (409, "proposal_ended")
    assert ("policy.refused", "ann") in await recorded(database)
    async with database.write() as conn:  # written by a later release
        newer = policies.StoredPolicy(version=5, source="[[rule]", digest="d", changed_by="x", comment="")
        await policies.append_version(conn, newer)
    assert (await put(ann, DENY, 5))["proposal"] == 5


async def test_of_two_who_confirm_at_once_one_does(database: Database, admin: Admin) -> None:
    """One version, one confirmation in the log."""
    ann, bob, eve = await admin("ann"), await admin("bob"), await admin("eve")
    await put(ann, ALLOW, 0)
    done = await asyncio.gather(*(answer(each, "confirm", 1) for each in (bob, eve)))
    assert sorted(status for status, _code in done) == [200, 409]
    assert (await in_force(database))[0] == 1
    assert [each for each, _by in await recorded(database)].count("policy.confirmed") == 1


async def test_without_the_setting_nothing_waits(database: Database) -> None:
    """It is off by default."""
    assert not ApiSettings().policy_four_eyes
    headers = await token_for(database, "root", "admin")
    async with client_of(await application(database, four_eyes=False), headers=headers) as root:
        assert (await put(root, ALLOW, 0))["proposal"] is None
    assert await in_force(database) == (1, ALLOW)


async def press(browser: httpx.AsyncClient, verb: str) -> httpx.Response:
    """Press a button of the proposal, as a browser without JavaScript does."""
    page = PostedPage((await browser.get("/policy")).text)
    (form,) = [each for each in page.forms if "proposal" in each.sent]
    (button,) = [each for each in form.buttons if each.value == verb]
    return await browser.post("/policy", data={**form.sent, button.name: button.value})


async def test_a_proposal_is_confirmed_on_the_page(database: Database, admin: Admin) -> None:
    """Its author can only withdraw it; the other admin sees the rules and why they wait, confirms or refuses; all as text."""
    ann, bob = await admin("ann"), await admin("bob")
    hostile = ALLOW.replace("open", "<script>owned()</script>")
    await put(ann, hostile, 0)
    own, others = (await ann.get("/policy")).text, (await bob.get("/policy")).text
    assert "another admin has to confirm" in own
    assert "Put these rules in force" not in own
    assert "They are not in force." in others
    assert "<script>owned" not in others
    for verb in ("confirm", "refuse"):
        form = next(each for each in PostedPage(own).forms if "proposal" in each.sent)
        forged = await ann.post("/policy", data={**form.sent, "action": verb, "csrf_token": "x"})
        assert forged.status_code == 403
    refused = await ann.post("/policy", data={**form.sent, "action": "confirm"})
    assert refused.status_code == 403
    assert "another admin has to confirm them" in refused.text
    assert (await press(ann, "refuse")).status_code == 303
    assert "They are not in force." not in (await bob.get("/policy")).text
    await put(ann, ALLOW, 0)
    assert (await press(bob, "confirm")).status_code == 303
    assert await in_force(database) == (1, ALLOW)
    assert "They are not in force." not in (await bob.get("/policy")).text


async def test_every_page_says_that_rules_wait(database: Database, admin: Admin) -> None:
    """In the navigation of admins who can confirm them, not of their proposer or an operator; until they are answered."""
    ann, bob = await admin("ann"), await admin("bob")
    async with database.write() as conn:
        secret = await sessions.begin(conn, "carl", role="operator")
    badge = '1<span class="away"> to confirm</span>'
    async with client_of(await application(database), cookies={SESSION_COOKIE: secret}) as carl:
        await put(ann, ALLOW, 0)
        for browser, there in ((ann, False), (bob, True), (carl, False)):
            assert (badge in (await browser.get("/runs")).text) is there
        assert await answer(bob, "confirm", 1) == (200, "")
        assert badge not in (await bob.get("/runs")).text


async def test_versions_name_who_confirmed_them(
    database: Database, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the API, on the page and in the terminal; a version that took effect at once names no one."""
    ann, bob = await admin("ann"), await admin("bob")
    await put(ann, DENY, 0)
    for number in (1, 2):  # one that bob refuses, and one that he confirms
        await put(ann, DENY + ALLOW, 1)
        assert await answer(bob, "refuse" if number == 1 else "confirm", number) == (200, "")
    listed = (await bob.get("/api/v1/policy/versions")).json()["items"]
    assert [(each["version"], each["confirmed_by"]) for each in listed] == [(2, "bob"), (1, None)]
    assert (await bob.get("/api/v1/policy")).json()["stored"]["confirmed_by"] == "bob"
    page = " ".join(ShownText((await bob.get("/policy")).text).text.split())
    assert page.count("ann, confirmed by bob") == 2
    monkeypatch.setenv("TURNGATE_TOKEN", await owner_token(database, "ann"))
    async with serving(await application(database)) as url:
        for command in ("show", "history"):
            output = await asyncio.to_thread(CliRunner().invoke, cli, ["policy", command, "--url", url])
            assert "ann, confirmed by bob" in output.output


async def test_a_proposal_is_confirmed_in_a_terminal(
    database: Database, admin: Admin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`policy set` says that it waits, `show` what waits, `confirm` and `refuse` answer it."""
    bob = await admin("bob")
    monkeypatch.setenv("TURNGATE_TOKEN", await owner_token(database, "ann"))
    file = tmp_path / "rules.toml"
    file.write_text(ALLOW)
    async with serving(await application(database)) as url:

        async def run(*arguments: str, code: int = 0) -> str:
            output = await asyncio.to_thread(CliRunner().invoke, cli, ["policy", *arguments, "--url", url])
            assert output.exit_code == code, output.output
            return output.output

        assert "not in force yet: another admin has to confirm it: turngate policy confirm 1" in await run(
            "set", str(file)
        )
        output = await run("show")
        assert "waits for a second admin  proposal 1 by cli:ann" in output
        assert "adds open" in output
        assert "another admin has to confirm" in await run("confirm", "1", code=1)
        assert "proposal 1 is refused" in await run("refuse", "1")
        await put(bob, ALLOW, 0)
        assert "version 1 is in force: 1 rule(s)" in await run("confirm", "2")
