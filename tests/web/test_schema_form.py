"""The form of a schema in a real browser: fields that are not sent are hidden, and the keyboard is where the work is."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal

import pytest
from playwright.async_api import expect
from pydantic import BaseModel
from support.pages.browser import browse
from support.planted.pages import STATES, pages_of
from support.planted.text import Filling

from turngate.approvals_api.pages.templating import _environment
from turngate.domain.text import json_text
from turngate.forms import reader
from turngate.forms.schema_fields import form_of

NAMES = ("approval", "approval with a row more", "approval with an invalid edit")


class Booking(BaseModel):
    day: date
    at: datetime
    price: Decimal


@pytest.fixture(scope="module")
async def pages(browser, sqlite_template, tmp_path_factory):
    folder = tmp_path_factory.mktemp("form")
    async with pages_of(Filling("words"), sqlite_template, folder / "pages") as served:
        html = {name: await served.html(STATES[name]) for name in NAMES}
    async with browse(browser, html) as pages:
        yield pages


async def test_only_the_chosen_type_is_seen(pages):
    """For a choice of types the chosen one's fields are visible; another click replaces them."""
    page = await pages.go("approval")
    either = page.get_by_role("group", name="either", exact=True)
    fields = either.locator(".of-variant")
    await expect(fields.nth(0)).to_be_visible()
    await expect(fields.nth(1)).to_be_hidden()
    await either.get_by_role("radio").nth(1).check()
    await expect(fields.nth(0)).to_be_hidden()
    await expect(fields.nth(1).get_by_role("textbox")).to_be_visible()


async def test_a_member_that_is_left_out_has_no_fields(pages):
    """A list that is not sent hides its rows, and brings them back when it is."""
    page = await pages.go("approval")
    rows = page.locator("#edit-3 > .members")
    await expect(rows.get_by_role("group").first).to_be_visible()
    await page.get_by_label("What to send for rows", exact=True).select_option("absent")
    await expect(rows).to_be_hidden()
    await page.get_by_label("What to send for rows", exact=True).select_option("value")
    await expect(rows).to_be_visible()


async def test_the_keyboard_is_in_the_new_row(pages):
    """After a row is added, the new one has the focus, and Tab leads into its first field."""
    page = await pages.go("approval with a row more")
    row = page.get_by_role("group", name="rows 3", exact=True)
    await expect(row).to_be_focused()
    await page.keyboard.press("Tab")
    await expect(row.get_by_role("textbox").first).to_be_focused()


async def test_enter_presses_a_button_that_decides_nothing(pages):
    """The first button of each form, which Enter in a field presses, is off or asks for a typed name; it removes no row."""
    page = await pages.go("approval")
    pressed = await page.evaluate(
        """() => [...document.querySelectorAll("[data-form]")].map((form) => {
            const first = [...form.elements].find((each) => each.type === "submit");
            return first.disabled && first.name === "" || first.value === "entered";
        })"""
    )
    assert len(pressed) > 2
    assert all(pressed)
    assert await page.locator("#edit button[name=row]").count() > 2


async def test_an_error_is_read_with_its_field(pages):
    """An error is at its field, is part of what a screen reader says about it, and keeps what was typed."""
    page = await pages.go("approval with an invalid edit")
    field = page.locator("#edit-1")
    await expect(field).to_have_value("many")
    await expect(field).to_have_accessible_description("“many” is not a whole number. Type one such as 3.")


async def test_while_arguments_are_edited_the_form_is_as_wide_as_the_page(pages):
    """On a wide screen the decision is beside the call, until its edit form is opened."""
    page = await pages.go("approval")
    await page.set_viewport_size({"width": 1280, "height": 800})
    wide = "document.querySelector('#decision').offsetWidth / document.querySelector('.request').offsetWidth"
    await page.locator("#edit").evaluate("edit => { edit.open = false }")
    assert await page.evaluate(wide) < 0.5
    await page.locator("#edit").evaluate("edit => { edit.open = true }")
    assert await page.evaluate(wide) == 1


async def test_what_the_browsers_fields_send_is_what_the_form_reads(browser):
    """A date, a time in whole minutes and the zone beside it, and a decimal come back as the text that the tool takes."""
    raw = '{"day": "2026-01-31", "at": "2026-01-31T09:30:05+02:00", "price": "1.10"}'
    form = form_of(Booking.model_json_schema(), json_text.parse(raw).tree)
    html = _environment().get_template("fields.html").module.whole_form(form, {}, {}, "arguments")
    page = await browser.new_page()
    await page.set_content(f"<form>{html}</form>")
    sent = "Object.fromEntries(new FormData(document.querySelector('form')))"
    assert reader.read(form, await page.evaluate(sent)).args == raw
    await page.locator("[type=date]").fill("2026-02-28")
    await page.locator("[type=datetime-local]").fill("2026-02-28T10:00")
    await page.locator("[inputmode=decimal]").fill("0.30")
    edited = '{"day": "2026-02-28", "at": "2026-02-28T10:00:00+02:00", "price": "0.30"}'
    assert reader.read(form, await page.evaluate(sent)).args == edited
    await page.close()
