"""A request says where its arguments come from, on the page, in the terminal and in the terminal UI."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update
from support.pages.html_text import ShownText
from support.planted.pages import STATES, pages_of
from support.planted.text import Filling
from support.stores.changed_rows import log_requests_again

from turngate.approvals_api.requests.views import request_detail, request_page
from turngate.cli.follow.request import show_request
from turngate.cli.terminal import out
from turngate.domain.conversation.messages import Message, TextPart
from turngate.domain.origins.origin import Doubts, Origin, Origins, Place
from turngate.domain.runs.inbox import InboxFilter
from turngate.frontends.tui.request_text import call_text, item_text
from turngate.store.tables import messages, requests, runs

HOSTILE = "mail\u202e<b>"
ARGUMENTS = json.dumps({"iban": "LT12", "order": "A-102", "address": {"city": "Graz"}, "a/b": 1})
ORIGINS = Origins(
    items=(
        Origin(
            at="/iban",
            places=(Place(kind="result", tool=HOSTILE, at="/<i>", step=2, untrusted=True),),
            doubt="untrusted",
        ),
        Origin(at="/order", places=(Place(kind="result", tool="list"),), doubt="contradicts", instead="A-113"),
        Origin(at="/address/city", places=(Place(kind="task"),)),
        Origin(at="/a~1b", places=(Place(kind="call", tool="look", step=1),), doubt="nowhere"),
    ),
    complete=False,
)
SAYS = [
    "only in the result of mail⟨U+202E⟩<b> at /<i> (step 2), which anyone may have written",
    "from the result of list; people name A-113",
    "/address/city from the task",
    "nowhere in nothing that the model was sent; only in the agent's own call of look (step 1)",
    "3 values need a closer look: /iban, /order, /a~1b.",
    "Found by comparing text; a paraphrase isn't recognised. Not everything could be compared.",
]


async def test_each_surface_says_where_arguments_come_from(
    sqlite_template: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each argument with its places in plain words, doubts marked, and nothing that a tool chose is taken for markup."""
    async with pages_of(Filling("x"), sqlite_template, tmp_path / "origins") as served:
        async with served.database.write() as conn:
            changed = {"origins": ORIGINS.model_dump_json(exclude_defaults=True), "input": ARGUMENTS}
            await conn.execute(update(requests).where(requests.c.id == "rq_approval").values(**changed))
            await log_requests_again(conn)
        page = await served.html(STATES["approval"])
        async with served.database.read() as conn:
            detail = await request_detail(conn, "rq_approval")
    assert detail.origins == ORIGINS
    assert "<i>" not in page
    text = " ".join(ShownText(page).text.split())
    for words in SAYS:
        assert words in text
    out.cache_clear()
    show_request(detail)
    output = " ".join(capsys.readouterr().out.split())
    out.cache_clear()
    screen = " ".join(" ".join(each.text.plain for each in call_text(detail).lines).split())
    for words in (output, screen):
        assert "UNTRUSTED /iban: only in the result of mail" in words
        assert "\u202e" not in words
        assert "CONTRADICTS /order: the result of list; people name A-113" in words
        assert "NOWHERE /a~1b: in nothing that the model was sent" in words
        assert "/address/city: the task" in words


async def test_each_list_says_how_many_values_are_doubtful(
    sqlite_template: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the inbox, in the terminal's lists and when several are decided; a text that looks like a doubt counts for nothing."""
    forged = ORIGINS.items[0].model_copy(update={"part": '"doubt":"nowhere"', "doubt": None})
    origins = ORIGINS.model_copy(update={"items": (*ORIGINS.items, forged)})
    async with pages_of(Filling("x"), sqlite_template, tmp_path / "doubts") as served:
        async with served.database.write() as conn:
            await conn.execute(update(requests).values(origins=None))
            changed = {"origins": origins.model_dump_json(exclude_defaults=True), "input": ARGUMENTS}
            await conn.execute(
                update(requests).where(requests.c.id.in_(["rq_approval", "rq_diff", "rq_raw"])).values(**changed)
            )
            await log_requests_again(conn)
        inbox, several = await served.html(STATES["inbox"]), await served.html(STATES["bulk"])
        async with served.database.read() as conn:
            items = (await request_page(conn, InboxFilter(), limit=200)).items
    item = next(each for each in items if each.id == "rq_approval")
    assert item.doubts == Doubts(untrusted=1, contradicts=1, nowhere=1)
    assert {each.doubts for each in items} == {item.doubts, Doubts()}
    counts = "values 1 untrusted, 1 contradicting people, 1 from nowhere"
    assert counts in " ".join(ShownText(inbox).text.split())
    beside_calls, left_out = " ".join(ShownText(several).text.split()).split(" on their own ")
    assert SAYS[0] in beside_calls
    assert counts in left_out
    assert counts in item_text(item, me="ann", picked=False, width=100).plain
    plain = next(each for each in items if not each.doubts.words)
    assert "values" not in item_text(plain, me="ann", picked=False, width=100).plain


async def test_each_surface_says_what_the_task_is(
    sqlite_template: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The task is above the call and in the inbox; a long one is folded."""
    task = f"Refund A-113.{' Please' * 50}"
    async with pages_of(Filling("x"), sqlite_template, tmp_path / "tasks") as served:
        async with served.database.write() as conn:
            await conn.execute(update(runs).values(task=task, parent_run_id=None))
        page, inbox = await served.html(STATES["approval"]), await served.html(STATES["inbox"])
        async with served.database.read() as conn:
            detail = await request_detail(conn, "rq_approval")
    above = " ".join(ShownText(page.split('id="call"')[0]).text.split())
    assert "the task Refund A-113. Please" in above
    assert "task Refund A-113. Please" in " ".join(ShownText(inbox).text.split())
    out.cache_clear()
    show_request(detail)
    output = " ".join(capsys.readouterr().out.split())
    out.cache_clear()
    assert "the task Refund A-113. Please" in output.split('"')[0]
    assert call_text(detail).lines[0].text.plain.startswith("the task Refund A-113.")


async def test_each_surface_has_a_persons_latest_message(
    sqlite_template: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Above the call, where it isn't the task; a hostile text stays a text, and a long one is cut."""
    words = f"No, <b>A-114\u202e.{' Please' * 100}"
    async with pages_of(Filling("x"), sqlite_template, tmp_path / "said") as served:
        async with served.database.write() as conn:
            of_run = select(requests.c.run_id).where(requests.c.id == "rq_approval").scalar_subquery()
            talk = select(runs.c.conversation_id).where(runs.c.id == of_run).scalar_subquery()
            elsewhere = select(messages.c.id).where(messages.c.conversation_id != talk).limit(1).scalar_subquery()
            await conn.execute(update(runs).where(runs.c.id == of_run).values(input_message_id=elsewhere))
            message = Message(role="user", parts=(TextPart(text=words),)).model_dump_json()
            by_person = messages.c.role == "user", messages.c.step.is_(None)
            parts = json.dumps(json.loads(message)["parts"])
            await conn.execute(update(messages).where(*by_person).values(parts=parts))
        page = await served.html(STATES["approval"])
        async with served.database.read() as conn:
            detail = await request_detail(conn, "rq_approval")
    assert detail.latest_message is not None
    assert detail.latest_message.text == words[:500]
    above = " ".join(ShownText(page.split('id="call"')[0]).text.split())
    assert "a person last said No, <b>A-114⟨U+202E⟩. Please" in above
    assert "<b>A-114" not in page
    out.cache_clear()
    show_request(detail)
    output = " ".join(capsys.readouterr().out.split())
    out.cache_clear()
    assert "a person last said No, <b>A-114⟨U+202E⟩. Please" in output
    assert any(each.text.plain.startswith("a person last said No, <b>") for each in call_text(detail).lines)


async def test_a_request_from_before_says_nothing(sqlite_template: Any, tmp_path: Path) -> None:
    """Of a request that was opened before origins were known, nothing is claimed."""
    async with pages_of(Filling("x"), sqlite_template, tmp_path / "before") as served:
        async with served.database.write() as conn:
            await conn.execute(update(requests).values(origins=None))
            await log_requests_again(conn)
        page = await served.html(STATES["approval"])
    assert "comparing text" not in page


async def test_a_place_leads_to_its_message(sqlite_template: Any, tmp_path: Path) -> None:
    """Each place on the request's page is a link to the message that holds the value, above a sub-agent, too."""
    async with pages_of(Filling("x"), sqlite_template, tmp_path / "links") as served:
        async with served.database.write() as conn:
            of_run = select(requests.c.run_id).where(requests.c.id == "rq_approval").scalar_subquery()
            run = (await conn.execute(select(runs).where(runs.c.id == of_run))).mappings().one()
            other = (await conn.execute(select(runs).where(runs.c.id == "run_completed"))).mappings().one()
            own, above = run["input_message_id"], other["head_message_id"]
            await conn.execute(update(runs).where(runs.c.id == run["id"]).values(parent_run_id="run_completed"))
            places = (
                Place(kind="task", message_id=own),
                Place(kind="result", tool=HOSTILE, step=1, agent="chief", message_id=above),
                Place(kind="instructions"),
            )
            origins = Origins(items=(Origin(at="/iban", places=places), Origin(at="/order", places=places[2:])))
            changed = {"origins": origins.model_dump_json(exclude_defaults=True), "input": ARGUMENTS}
            await conn.execute(update(requests).where(requests.c.id == "rq_approval").values(**changed))
            await log_requests_again(conn)
        page = await served.html(STATES["approval"])
        at = f"/runs/{run['id']}/conversation?message="
        for message_id, words in ((own, "the task"), (above, "the result of")):
            assert f'<a href="{at}{message_id}#{message_id}"><bdi lang translate=no>{words}' in page
        assert page.count(at) == 2
        answer = await served.client.get(f"{at}{own}")
        assert answer.text.count(f'id="{own}"') == 1
        elsewhere = await served.client.get(f"{at}{above}")
        assert elsewhere.status_code == 303
        assert elsewhere.headers["location"] == f"/runs/run_completed/conversation?message={above}#{above}"
        assert f'id="{above}"' in (await served.client.get(elsewhere.headers["location"])).text
        unknown = await served.client.get("/runs/run_completed/conversation", params={"message": '"><b>'})
        assert unknown.status_code == 404
        assert "<b>" not in unknown.text
