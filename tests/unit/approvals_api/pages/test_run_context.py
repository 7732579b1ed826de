"""A run's surroundings on its page: budgets with sub-agents', failed attempts, the response in progress."""

from __future__ import annotations

import base64
import re

import pytest
from support.planted.pages import STATES, PageState, pages_of
from support.planted.text import PIXEL, Filling

from turngate.approvals_api.pages.file_parts import MAX_BYTES, shown_file, size_in_words
from turngate.domain.conversation.messages import FilePart

TAGS = re.compile(r"<[^>]*>")


@pytest.fixture(scope="module")
async def texts(sqlite_template, tmp_path_factory):
    """The text of pages by the names of their states."""
    names = ("run completed", "run retrying", "run failed", "run of an external call", "external call", "inbox")
    more = ("fork", "fork summarised", "conversation", "runs")
    async with pages_of(Filling("shop"), sqlite_template, tmp_path_factory.mktemp("around") / "pages") as served:
        html = {name: await served.html(STATES[name]) for name in (*names, *more)}
        html["conversation of another page"] = await served.html(PageState("/runs/run_completed/conversation?offset=1"))
    return {name: " ".join(TAGS.sub(" ", page.partition("<main")[2]).split()) for name, page in html.items()}


def test_a_budget_is_shown_with_what_sub_agents_used_of_it(texts):
    """Tokens and cost of the run with its sub-agents, their share, and extensions of a limit."""
    assert "51 tokens, 50 of them by its sub-agents (limit raised)" in texts["run completed"]
    assert "cost 0.000002, 0.000001 of it by its sub-agents" in texts["run completed"]
    assert "1 of 100 steps" in texts["run completed"]


def test_waiting_for_a_model_is_shown_without_javascript(texts):
    """Until when, why, that no one has to act, its text so far; each step keeps its failed attempts."""
    page = texts["run retrying"]
    assert "Step 2 the model is answering" in page
    assert re.search(r"The model failed; it is retried in 1 h , at \d\d:\d\d:\d\d UTC \( shop \): shop", page)
    assert "Its earlier words are void: shop" in page
    assert "Calls shop Some of it is not shown." in page
    assert "The conversation was not summarised before this step: the model failed (shop) ." in page
    assert page.count("1 failed attempt before") == 2
    assert "Its words so far are void." in page
    assert re.search(r"shop switched the model from shop to shop , \d+ (s|min) ago \.", page)


@pytest.mark.parametrize("name", ["run retrying", "run failed"])
def test_an_unfinished_answer_stays_readable(texts, name):
    """While the model is asked again, and after the run failed: what it had written, and that nothing ran from it."""
    unfinished = "Nothing of it ran, and it is not part of the conversation. shop"
    assert re.search(r"An unfinished answer, attempt 1, \d+ (s|min) ago ", texts[name])
    assert texts[name].count(unfinished) == 1


def test_a_run_that_began_with_a_summary_says_so(texts):
    """Of how many messages, by which model, and that it shares nothing else."""
    assert "It begins with a summary of 3 messages , written by shop , and shares nothing else" in texts["run failed"]


def test_a_fork_says_what_its_model_reads(texts):
    """Messages as they are, or a summary instead of them; a summary to be written says that it will be all."""
    assert (
        "The model reads 2 messages of the past as they are, and a summary instead of 1 earlier message"
        in texts["fork"]
    )
    assert "A model first writes a summary of the past (3 messages, 6 calls)." in texts["fork summarised"]
    assert "with its recorded result" not in texts["fork summarised"]


def test_the_whole_conversation_is_readable(texts):
    """Every message, with the cut and what the model reads instead; the engine's messages are not a person's."""
    page = texts["conversation"]
    assert "3 messages, as stored" in page
    assert "the model reads a summary instead of the messages above, written by shop" in page
    assert page.index("person") < page.index("instead of the messages above") < page.index("agent step 1")
    assert "messages 2 to 3 of 3" in texts["conversation of another page"]


def test_a_call_from_outside_names_its_source_and_no_model(texts):
    """Inbox, list, request and run name the program that runs it and whose words are whose, without a model."""
    request, run = texts["external call"], texts["run of an external call"]
    assert "external shop" in texts["inbox"]
    assert "external shop" in texts["runs"]
    assert "requested by shop (external)" in request
    assert "shop , a program that runs the call itself, outside Turngate" in request
    assert "The words of shop" in request
    assert "Lets shop run the call exactly as shown" in request
    assert "The agent's words" not in request
    assert "Conversation so far" not in request
    assert "External call of shop" in run
    assert "Cancel the call" in run
    for of_agents in (
        "Switch its model",
        "Message to",
        "model external",
        "agent version",
        "whole conversation",
        "fork",
    ):
        assert of_agents not in run, of_agents


def png(size: int) -> str:
    return base64.b64encode(base64.b64decode(PIXEL) + b"\0" * size).decode()


@pytest.mark.parametrize(
    ("part", "way"),
    [
        (FilePart(type="image", media_type="image/png", content=PIXEL), "drawn"),
        (FilePart(type="image", media_type=" IMAGE/PNG", content=PIXEL), "drawn"),
        (FilePart(type="image", media_type="image/jpeg", content=PIXEL), "named"),
        (FilePart(type="image", media_type="image/svg+xml", content=base64.b64encode(b"<svg/>").decode()), "named"),
        (FilePart(type="file", media_type="text/html", content=base64.b64encode(b"<b>").decode()), "named"),
        (FilePart(type="image", media_type="image/png", content=png(MAX_BYTES)), "named"),
        (FilePart(type="image", media_type="image/webp", content=base64.b64encode(b"RIFF....AVI ").decode()), "named"),
        (FilePart(type="image", media_type="image/png", content='"><script>'), "unreadable"),
        (FilePart(type="image", media_type="image/png", content="\u202e"), "unreadable"),
        (FilePart(type="image", media_type="image/png", url="http://example.org/x.png"), "elsewhere"),
        (FilePart(type="image", media_type="image/png"), "empty"),
    ],
)
def test_only_pixels_that_are_what_they_say_are_drawn(part, way):
    """The bytes count, not the type alone; nothing is loaded from elsewhere, and every address is local."""
    file = shown_file(part)
    assert file.way == way
    assert file.address == (f"data:image/png;base64,{PIXEL}" if way == "drawn" else "")


def test_sizes_are_shown_in_units_of_a_thousand():
    """Bytes, then one decimal."""
    assert [size_in_words(size) for size in (0, 1, 999, 14_200, 1_300_000)] == [
        "0 bytes",
        "1 byte",
        "999 bytes",
        "14.2 KB",
        "1.3 MB",
    ]
