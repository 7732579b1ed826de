"""Deciding in a real browser: by mouse, by keyboard, and with JavaScript off."""

import json

import pytest
from playwright.async_api import expect
from support.engine.stack import until
from support.planted.precedents import caught_up

from turngate.domain.tools.results import Failure, Ok

ARGS = '{"order": "A-7", "cents": 12000, "rate": 1.10, "note": "two\\nlines", "tags": ["vip", "late"], "extra": {"a": [1]}}'
NO_SCRIPT = {"java_script_enabled": False}
CALL = "document.querySelector('#call').getBoundingClientRect()"
BOTTOM = "(innerHeight - document.querySelector('.bar').offsetHeight)"
ON_SCREEN = f"Math.round(Math.min({CALL}.height, {BOTTOM} - {CALL}.top))"
SCRIPTED_OR_NOT = pytest.mark.parametrize(
    "options", [pytest.param({}, id="script"), pytest.param(NO_SCRIPT, id="no-script", marks=pytest.mark.exhaustive)]
)


def reason_of(call):
    assert isinstance(call.settled_result, Failure)
    return call.settled_result


async def test_a_recent_reason_is_chosen(site, open_page):
    """A reason with which someone rejected such a call is in a list, from which it goes into the field."""
    before = await site.gated("refund", '{"order": "reason-a", "cents": 7}')
    await site.stack.decide(before, "reject", message="Not on this machine.")
    await caught_up(site.stack.database)
    request = await site.gated("refund", '{"order": "reason-b", "cents": 7}')
    page = await open_page(f"/requests/{request.id}")
    await page.get_by_label("or a recent reason").select_option("Not on this machine.")
    await expect(page.locator("#reject-message")).to_have_value("Not on this machine.")
    await expect(page.locator("#reject-message")).to_be_focused()
    await page.keyboard.type(" Ask Ann.")
    await page.get_by_role("button", name="Reject").click()
    await expect(page.locator("#decision")).to_contain_text("Rejected by ada")
    assert "Not on this machine. Ask Ann." in reason_of(await site.ended(request)).reason
    await site.ended(before)


async def test_approve_by_keyboard_takes_two_presses(site, open_page):
    """`j` marks a request, `x` selects it, Enter opens it; the first `a` only arms the button, the second presses it.

    Two presses within 300 ms are one, and so are the repeats of a key that is held; the next calm press approves.
    """
    request = await site.gated("refund", '{"order": "by keyboard", "cents": 7}')
    page = await open_page("/?search=by+keyboard")
    box = page.locator(f'input[name="pick-{request.id}"]')
    await page.keyboard.press("j")
    await page.keyboard.press("x")
    await expect(box).to_be_checked()
    await page.keyboard.press("x")
    await expect(box).not_to_be_checked()
    await page.keyboard.press("a")  # on the inbox it does nothing
    assert (await site.now(request)).status == "pending"
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"**/requests/{request.id}?**")
    await page.keyboard.press("a")
    await expect(page.locator("[data-approve]")).to_have_text("Press a again to approve")
    assert (await site.now(request)).status == "pending"
    await page.keyboard.press("Escape")
    await expect(page.locator("[data-approve]")).to_have_text("Approve")
    press = "document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'a', bubbles: true }));"
    await page.evaluate(press * 3)
    await expect(page.locator("[data-approve]")).to_have_text("Press a again to approve")
    await page.keyboard.press("Escape")
    for _repeat in range(30):
        await page.keyboard.down("a")
    await expect(page.locator("[data-approve]")).to_have_text("Press a again to approve")
    assert (await site.now(request)).status == "pending"
    await page.keyboard.up("a")
    await page.keyboard.press("Escape")
    await press_a_twice(page)
    await expect(page.locator("#decision")).to_contain_text("Approved by ada")
    await site.ended(request)


async def is_refused(page, sent):
    """Send, and wait for the answer: the page before it is marked, because its complaint about another text doesn't count."""
    await page.locator("#decision").evaluate("each => { each.dataset.before = 'yes' }")
    await sent
    await expect(page.locator("#decision:not([data-before]) #approve-confirm-complaint")).to_be_visible()


@SCRIPTED_OR_NOT
async def test_high_risk_wants_the_tools_name(site, open_page, options):
    """The keyboard can't skip the confirmation, where letters are letters; without the typed name the server refuses.

    Enter in the fields of an edit and of an empty confirmation decides nothing, and drops nothing typed. After the typed name
    it presses the button, unless the call is edited elsewhere in the form.
    """
    request = await site.gated("deploy", '{"target": "named"}')
    page = await open_page(f"/requests/{request.id}", **options)
    if not options:
        await page.keyboard.press("a")
        await page.keyboard.press("a")
        await expect(page.locator("#approve-confirm")).to_have_value("a")
        await page.locator("#approve-confirm").fill("")
    await page.locator("#approve-confirm").press("Enter")
    await page.locator("#edit > summary").click()
    await page.locator("#edit").get_by_label("target").fill("changed")
    await page.locator("#edit").get_by_label("target").press("Enter")
    await page.locator("#edit-confirm").press("Enter")
    await expect(page.locator("#edit").get_by_label("target")).to_have_value("changed")
    if options:
        await expect(page.locator("#attempt")).to_contain_text("Enter sends nothing here.")
    await page.goto(f"/requests/{request.id}")  # what was sent would have arrived before this
    for typed in ("", "Deploy"):
        await page.locator("#approve-confirm").fill(typed)
        await is_refused(page, page.get_by_role("button", name="Approve", exact=True).click())
        await expect(page.locator("#approve-confirm")).to_have_value(typed)
    assert (await site.now(request)).status == "pending"
    await page.locator("#approve-confirm").fill("deplo")
    await is_refused(page, page.locator("#approve-confirm").press("Enter"))
    await expect(page.locator("#attempt")).to_contain_text("type the tool's name")
    assert (await site.now(request)).status == "pending"
    if options:
        await page.locator("#edit > summary").click()
        await page.locator("#edit").get_by_label("target").fill("elsewhere")
        await page.locator("#approve-confirm").fill("deploy")
        await page.locator("#approve-confirm").press("Enter")
        await expect(page.locator("#attempt")).to_contain_text("nothing was sent")
        assert (await site.now(request)).status == "pending"
        await page.locator("#edit-confirm").fill("deploy")
        await page.locator("#edit-confirm").press("Enter")
        await expect(page.locator("#decision")).to_contain_text("Approved with edited arguments by ada")
    else:
        await page.locator("#approve-confirm").fill("deploy")
        await page.locator("#approve-confirm").press("Enter")
        await expect(page.locator("#decision")).to_contain_text("Approved by ada")
    await site.ended(request)


async def test_i6_while_an_edit_is_not_sent_the_plain_approval_is_gone(site, open_page):
    """I6: by mouse and by key, what approves is the edit; typed back, the plain button returns; `a` `a` never drops an edit."""
    request = await site.gated("refund", '{"order": "edited", "cents": 7}')
    page = await open_page(f"/requests/{request.id}")
    plain, edited = page.locator("[data-approve]"), page.locator("[data-approve-edited]")
    await expect(edited).to_be_hidden()
    await page.locator("#edit > summary").click()
    cents = page.get_by_label("cents integer")
    await cents.fill("8")
    await expect(plain).to_be_hidden()
    await expect(edited).to_have_text("Approve with 1 change")
    await cents.fill("7")
    await expect(plain).to_be_visible()
    await expect(edited).to_be_hidden()
    await cents.fill("9")
    await expect(edited).to_have_text("Approve with 1 change")
    await page.keyboard.press("Escape")
    await page.evaluate("scrollTo(0, 0)")
    await page.keyboard.press("a")
    await expect(edited).to_have_text("Press a again to approve with 1 change")
    await page.wait_for_timeout(400)  # longer than a bounce
    await page.keyboard.press("a")
    await expect(page.locator("#decision")).to_contain_text("Approved with edited arguments by ada")
    assert json.loads((await site.ended(request)).edited_input or "{}")["cents"] == 9


@pytest.mark.exhaustive
async def test_an_edit_that_is_not_sent_survives_a_claim_and_comments(site, open_page):
    """They change their own part of the page. A claim whose answer is lost says to look first; a refused one says why."""
    request = await site.gated("refund", '{"order": "kept", "cents": 7}')
    page = await open_page(f"/requests/{request.id}")
    edited, claim = page.locator("[data-approve-edited]"), page.locator("#claim")
    await page.locator("#edit > summary").click()
    await page.get_by_label("cents integer").fill("8")
    address = f"**/requests/{request.id}/claim"
    await page.route(address, lambda route: route.abort())
    await claim.get_by_role("button", name="Claim it").click()
    await expect(claim).to_contain_text("look in a new tab whether it has arrived")
    await page.unroute(address)
    await page.evaluate("document.querySelector('#claim [name=csrf_token]').value = 'stale'")
    await claim.get_by_role("button", name="Claim it").click()
    await expect(claim).to_contain_text("Not done: Not claimed.")
    await page.reload()
    await page.locator("#edit > summary").click()
    await page.get_by_label("cents integer").fill("8")
    await claim.get_by_role("button", name="Claim it").click()
    await expect(claim).to_contain_text("You have claimed this")
    for text in ("Whose is it?", "Sales"):
        await page.locator("#comment").fill(text)
        await page.get_by_role("button", name="Comment", exact=True).click()
        await expect(page.locator(".comment").last).to_contain_text(text)
        await expect(page.locator("#comment")).to_have_value("")
    await expect(page.locator("[data-stale]")).to_be_hidden()
    await expect(page.locator("[data-approve]")).to_be_hidden()
    await expect(edited).to_have_text("Approve with 1 change")
    await edited.click()
    await expect(page.locator("#decision")).to_contain_text("Approved with edited arguments by ada")
    assert json.loads((await site.ended(request)).edited_input or "{}")["cents"] == 8


async def test_i6_without_the_script_an_approval_sends_no_edit_away(site, open_plain):
    """I6: the plain button sends the edit along, so the server refuses it, shows the edit, and offers to approve with it."""
    request = await site.gated("refund", '{"order": "no script", "cents": 7}')
    page = await open_plain(f"/requests/{request.id}")
    await page.press("Approve as edited")
    assert "Nothing was changed" in page.text
    await page.press("Approve", {"edit-1": "8"})
    assert "nothing was sent" in page.text
    assert page.value("edit-1") == "8"
    assert "Approve with 1 change" in page.text
    await page.press("Show exactly what this would allow")
    assert "nothing was sent" in page.text
    assert page.value("edit-1") == "8"
    raw = '{"order": "both", "cents": 1}'
    await page.press("Approve as edited", {"edit-json": raw})
    assert "You changed the form and the raw JSON, too" in page.text
    assert page.value("edit-json") == raw
    await page.press("Approve this JSON", {"edit-1": "7", "edit-json": '{"order": "both", "cents": "many"}'})
    assert 'id="edit-json-complaint"' in page.html
    assert (await site.now(request)).status == "pending"
    await page.press("Approve as edited", {"edit-1": "8", "edit-json": '{"order": "no script", "cents": 7}'})
    assert "Approved with edited arguments by ada" in page.section("decision")
    assert json.loads((await site.ended(request)).edited_input or "{}")["cents"] == 8


@SCRIPTED_OR_NOT
async def test_a_refused_edit_says_why_at_its_field_and_leads_there(site, open_page, options):
    """422: the first field with an error has the focus and is on the screen; the top has a link to it; its form loses no text.

    With a script no other form does either.
    """
    request = await site.gated("refund", '{"order": "refused", "cents": 7}')
    page = await open_page(f"/requests/{request.id}", **options)
    await page.locator("#reject-message").fill("perhaps no")
    await page.locator("#edit > summary").click()
    await page.get_by_label("cents integer").fill("many")
    await page.get_by_label("What to send for note", exact=True).select_option("value")
    await page.locator("#edit").get_by_label("note", exact=True).fill("typed note")
    async with page.expect_response(
        lambda each: each.request.method == "POST" and "presence" not in each.url
    ) as posted:
        await page.get_by_role("button", name="Approve as edited").click()
    assert (await posted.value).status == 422
    cents = page.get_by_label("cents integer")
    link = page.locator("#attempt a[data-problem]")
    await expect(link).to_have_text("cents: “many” is not a whole number. Type one such as 3.")
    await expect(cents).to_be_focused()
    await expect(cents).to_be_in_viewport()
    await expect(cents).to_have_value("many")
    await expect(page.locator("#edit").get_by_label("note", exact=True)).to_have_value("typed note")
    await expect(page.locator("[data-approve]")).to_be_hidden()
    if not options:
        await expect(page.locator("#reject-message")).to_have_value("perhaps no")
        await page.locator("#reject-message").focus()
        await link.click()
        await expect(cents).to_be_focused()
    assert (await site.now(request)).status == "pending"
    await page.get_by_label("cents integer").fill("8")
    await page.get_by_role("button", name="Approve as edited").click()
    await expect(page.locator("#decision")).to_contain_text("Approved with edited arguments by ada")
    assert (await site.ended(request)).edited_input == '{"order": "refused", "cents": 8, "note": "typed note"}'


@SCRIPTED_OR_NOT
async def test_an_edit_says_what_was_and_what_will_be(site, open_page, options):
    """Before it is sent (while it is typed, or by a button that sends nothing), and afterwards to everyone who looks.

    A long change is folded, and the edit isn't approved before it was opened.
    """
    request = await site.gated("refund", '{"order": "A-8", "cents": 1200, "note": "to ada"}')
    page = await open_page(f"/requests/{request.id}", **options)
    await page.locator("#edit > summary").click()
    await page.get_by_label("cents integer").fill("12000")
    await page.get_by_role("textbox", name="note").fill("to \u202eeve")
    if options:
        await page.locator("#edit").get_by_role("button", name="See what changes").click()
    changes = page.locator("#edits-edit .changes > div")
    await expect(changes).to_have_count(2)
    await expect(changes.nth(0)).to_contain_text("/cents")
    await expect(changes.nth(0).locator(".side").nth(0)).to_have_text("was 1200")
    await expect(changes.nth(0).locator(".side").nth(1)).to_have_text("will be 12000")
    await expect(changes.nth(0).locator("ins")).to_have_text("0")
    await expect(changes.nth(1).locator(".side").nth(1)).to_have_text("will be to ⟨U+202E⟩eve")
    await page.get_by_role("textbox", name="note").fill(f"{'y' * 5_000} the end")
    if options:
        await page.locator("#edit").get_by_role("button", name="See what changes").click()
    fold = page.locator("#edits-edit details[data-must-open]")
    await expect(fold).to_contain_text("the end")
    if not options:
        await expect(fold).not_to_have_attribute("open", "")
        await page.get_by_role("button", name="Approve as edited").click()
        await expect(page.locator("[data-why-not]")).to_contain_text("what your edit changes was folded")
    await expect(fold).to_have_attribute("open", "")
    assert (await site.now(request)).status == "pending"
    await page.get_by_role("button", name="Approve as edited").click()
    await expect(page.locator("#decision")).to_contain_text("Approved with edited arguments by ada")
    await expect(page.locator("#decision .changes .side").nth(1)).to_have_text("is 12000")
    await site.ended(request)


async def test_a_grant_approves_nothing_that_was_not_on_the_screen(site, open_page):
    """Its button is far below a tall call on the smallest phone: it sends nothing before all of the call was on the screen."""
    note = "".join(f"line {number}\n" for number in range(60))
    request = await site.gated("refund", json.dumps({"order": "granted", "cents": 1, "note": note}))
    page = await open_page(f"/requests/{request.id}", viewport={"width": 320, "height": 568})
    await page.locator("#grant > summary").click()
    await page.get_by_role("button", name="Show exactly what this would allow").click()
    button = page.get_by_role("button", name="Approve, and allow exactly these")
    await button.click()
    await expect(page.locator("[data-say]")).to_contain_text("There is more of the call below")
    assert (await site.now(request)).status == "pending"
    await read_all(page)
    await button.click()
    await expect(page.locator("#decision")).to_contain_text("Approved by ada")
    await site.ended(request)


async def read_all(page):
    """Scroll through the call, on after what is on the screen counts as seen."""
    seen = f"Number(document.querySelector('#call').dataset.seenTo) >= {ON_SCREEN}"
    await page.evaluate("scrollTo({ top: 0, behavior: 'instant' })")
    # More than that, when the scroll of a refused press was painted before the jump to the end.
    await until(lambda: page.evaluate(seen), "what is on the screen counts as seen")
    while await page.evaluate(f"{CALL}.bottom > {BOTTOM}"):
        await page.evaluate("scrollBy({ top: innerHeight * 0.5, behavior: 'instant' })")
        await until(lambda: page.evaluate(seen), "what is on the screen counts as seen")


async def press_a_twice(page):
    await page.keyboard.press("a")
    await page.wait_for_selector("[data-approve][data-ready]")
    await page.keyboard.press("a")


async def test_a_never_approves_what_is_not_on_the_screen(site, open_page):
    """While the call is scrolled away, `a` scrolls to the call instead of arming the button, and arming keeps it in view."""
    request = await site.gated("refund", json.dumps({"order": "far", "cents": 1}), "word\n" * 200)
    page = await open_page(f"/requests/{request.id}", viewport={"width": 700, "height": 560})
    await page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    await page.keyboard.press("a")
    await expect(page.locator("#call")).to_be_in_viewport()
    await expect(page.locator("[data-approve]")).to_have_text("Approve")
    whole = await page.evaluate(f"String(Math.round({CALL}.height))")
    await expect(page.locator("#call")).to_have_attribute("data-seen-to", whole)
    await page.keyboard.press("a")
    await expect(page.locator("[data-toast]")).to_be_in_viewport()
    await expect(page.locator("#call")).to_be_in_viewport()
    assert (await site.now(request)).status == "pending"
    await page.wait_for_selector("[data-approve][data-ready]")
    await page.keyboard.press("a")
    await expect(page.locator("#decision")).to_contain_text("Approved by ada")
    await site.ended(request)


async def test_keys_are_off_while_typing_and_can_be_switched_off(site, open_page):
    """Letters typed into a field are letters, and the switch in the help turns the keys off in this browser."""
    request = await site.gated("refund", '{"order": "typing", "cents": 1}')
    page = await open_page(f"/requests/{request.id}")
    await page.keyboard.press("r")
    await page.keyboard.type("aa, e? jk")
    await expect(page.locator("#reject-message")).to_have_value("aa, e? jk")
    await page.keyboard.press("Escape")
    await page.keyboard.press("?")
    await page.get_by_label("Keys are on").uncheck()
    await page.get_by_role("button", name="Close").click()
    await page.keyboard.press("e")
    await expect(page.locator("#edit")).not_to_have_attribute("open", "")
    await page.keyboard.press("?")
    await page.get_by_label("Keys are on").check()
    await page.get_by_role("button", name="Close").click()
    await page.keyboard.press("e")
    await expect(page.locator("#edit")).to_have_attribute("open", "")
    assert (await site.now(request)).status == "pending"


async def test_an_edit_changes_one_value_and_keeps_every_type(site, open_page):
    """In a real browser: one field is edited, and integer, number, null, text with lines, list and JSON arrive unchanged."""
    request = await site.gated("refund", ARGS)
    page = await open_page(f"/requests/{request.id}")
    await page.locator("#edit > summary").click()
    await page.locator("#edit").get_by_label("order", exact=True).fill("A-8")
    await page.get_by_role("button", name="Approve as edited").click()
    await expect(page.locator("#decision")).to_contain_text("Approved with edited arguments by ada")
    call = await site.ended(request)
    assert call.input == ARGS
    assert call.edited_input == ARGS.replace("A-7", "A-8")
    assert site.ran.of("refund")[-1] == {
        "order": "A-8",
        "cents": 12000,
        "rate": 1.1,
        "note": "two\nlines",
        "tags": ["vip", "late"],
        "extra": {"a": [1]},
        "speed": "normal",
        "notify": True,
    }


async def test_i6_an_edit_that_needs_stricter_terms_leads_to_its_own_request(site, open_page):
    """I6: the page says that nothing was decided and why, and links to the request about the edited call."""
    request = await site.gated("refund", '{"order": "much", "cents": 1}')
    page = await open_page(f"/requests/{request.id}")
    await page.keyboard.press("e")
    await page.locator("#edit-raw > summary").click()
    await page.locator("#edit-json").fill('{"order": "much", "cents": 2000000}')
    await page.get_by_role("button", name="Approve this JSON").click()
    await expect(page.locator("#attempt")).to_contain_text("Your edit needs another decision.")
    await expect(page.locator("#attempt")).to_contain_text("it is of high risk")
    await expect(page.locator("#decision")).to_contain_text("another request replaced it")
    again = await site.stack.request(await site.run(request))
    await page.get_by_role("link", name="Open the new request").click()
    await page.wait_for_url(f"**/requests/{again.id}")
    await expect(page.locator(".title")).to_contain_text("high")
    await page.locator("#reject-message").fill("too much")
    await page.get_by_role("button", name="Reject").click()
    await site.ended(request)


async def test_answer_instead_of_the_tool(site, open_plain):
    """The person's answer is the result, and the tool does not run."""
    request = await site.gated("refund", '{"order": "respond", "cents": 1}')
    page = await open_plain(f"/requests/{request.id}")
    await page.press("Send the message")
    assert 'id="respond-message-complaint"' in page.html
    await page.press("Send the message", {"respond-message": "It was refunded by hand."})
    assert "Answered by ada" in page.section("decision")
    assert (await site.ended(request)).settled_result == Ok(value={"operator_response": "It was refunded by hand."})


async def test_a_question_is_answered_by_a_suggestion(site, open_plain):
    """A suggested answer is one click; the agent gets exactly its text."""
    request = await site.gated("ask_person", '{"question": "Which?", "choices": ["Europe", "Asia"]}')
    page = await open_plain(f"/requests/{request.id}")
    await page.press("Asia")
    assert "Answered by ada" in page.section("decision")
    assert (await site.ended(request)).settled_result == Ok(value={"answer": "Asia"})


async def test_a_question_is_answered_in_own_words_by_keyboard(site, open_page):
    """`a` leads to the answers. A suggestion that is pressed beside typed text is an error, not a guess; the text stays."""
    request = await site.gated("ask_person", '{"question": "Which?", "choices": ["Europe", "Asia"]}')
    page = await open_page(f"/requests/{request.id}")
    await page.keyboard.press("a")
    await expect(page.get_by_role("button", name="Europe")).to_be_focused()
    await page.get_by_label("answer", exact=True).focus()
    await page.keyboard.type("Mars")
    await page.get_by_role("button", name="Asia").click()
    await expect(page.locator("#answer-0-complaint")).to_be_visible()
    await page.get_by_label("answer", exact=True).focus()
    await page.keyboard.press("End")
    await page.keyboard.type("!")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page.locator("#decision")).to_contain_text("Answered by ada")
    assert (await site.ended(request)).settled_result == Ok(value={"answer": "Mars!"})


@pytest.mark.parametrize("way", ["happened", "rerun", "tell"])
async def test_an_unknown_outcome_is_resolved(site, open_plain, way):
    """It happened (with its result), it did not (it runs, after the tool's name is typed), or the agent decides what to do."""
    request = await site.lost("refund", json.dumps({"order": way, "cents": 5}))
    page = await open_plain(f"/requests/{request.id}")
    if way == "happened":
        await page.press("It happened, with this result", {"happened-0": "5"})
    elif way == "rerun":
        await page.press("It did not happen: run it", {"rerun-confirm": "refund"})
    else:
        await page.press("Tell the agent")
    assert "Answered by ada" in page.section("decision")
    call = await site.ended(request)
    ran = [each for each in site.ran.of("refund") if each["order"] == way]
    assert len(ran) == (1 if way == "rerun" else 0)
    if way == "happened":
        assert call.settled_result == Ok(value={"paid": 5, "reference": ""})
    elif way == "tell":
        assert reason_of(call).kind == "unknown"


async def test_the_starter_may_be_barred(site, open_page):
    """If the rule requires another person, the starter sees why, and every button is off."""
    request = await site.gated("edit_file", '{"path": "a", "old": "b", "new": "c"}')
    page = await open_page(f"/requests/{request.id}", operator="starter")
    await expect(page.locator("#decision")).to_contain_text("wants someone else to decide")
    await expect(page.locator("[data-approve]")).to_be_disabled()
    await page.keyboard.press("a")
    await page.keyboard.press("a")
    assert (await site.now(request)).status == "pending"
