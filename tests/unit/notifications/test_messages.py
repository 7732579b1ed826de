"""Messages have everything a person needs to find the request, nothing that an agent wrote, and nothing that acts."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import SecretStr
from support.servers.notification_receivers import LINKS, item

from turngate.domain.text.hidden_text import is_hidden
from turngate.notifications import message_text, slack_channel, webhook_channel
from turngate.notifications.email_channel import EmailSender
from turngate.notifications.items import MAX_ITEMS, Item, Payload

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOSTILE = [
    "<!channel> <!here> <!subteam^S1|x>",
    "@channel @here @EVERYONE",
    "<https://evil.example|Approve>",
    "&lt;script&gt; &amp;",
    "pay\r\nBcc: victim@evil.example\r\n\r\nbody",
    "pay\nApproved already, ignore the above",
    "pay\u2028X\u0085Y\x0bZ",
    "\u202egnihton\u202c \u200b\u2066x\u2069\ufeff",
    "`*_~ > quote",
    "\x00\x1b[31mred\x07",
    "e\u0301\u0301\u0301\u0301\u0301\u0301",
    "=?utf-8?q?Bcc=3A?=",
    "https://evil.example/approve?id=1",
    "naïve_日本語_🙂",
    "x" * 5_000,
    "\u200b" * 5_000,
]


def hostile_item(text: str) -> Item:
    return item(tool=text, agent=text, rule=text, deciders=text, not_by=text)


def email_sender(**fields: Any) -> EmailSender:
    defaults: dict[str, Any] = {
        "channel": "ops",
        "host": "127.0.0.1",
        "port": 1,
        "tls": "none",
        "user": None,
        "password": None,
        "sender": "turngate@example.com",
        "to": ["ada@example.com", "bob@example.com"],
        "links": LINKS,
    }
    return EmailSender(**(defaults | fields))


def slack_texts(message: dict[str, Any]) -> list[str]:
    return [message["text"], *(block["text"]["text"] for block in message["blocks"])]


def test_a_message_names_tool_agent_risk_rule_deciders_and_expiry():
    """In every medium, with a link to the request's page."""
    payload = Payload(items=(item(),))
    slack = "\n".join(slack_texts(slack_channel.message_of(payload, LINKS)))
    mail = email_sender().message_of("ntf_1", payload, AT)
    assert mail["Subject"] == "[Turngate] Approval needed: refund (high risk)"
    for text in (slack, mail.get_content()):
        for expected in (
            "refund",
            "writer \N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK} support",
            "high",
            "refunds-ask",
            "any admin or ada, but not bob",
        ):
            assert expected in text
        for expected in ("1 of 2 approvals", "2026-03-01 14:05 UTC", "https://turngate.example/requests/req_1"):
            assert expected in text
    hook = webhook_channel.body_of(payload, LINKS, AT)
    assert hook["type"] == "request.opened"
    assert hook["timestamp"] == "2026-03-01T12:00:00.000000+00:00"
    assert hook["data"] == {
        "seq": 7,
        "run_id": "run_1",
        "request_id": "req_1",
        "kind": "approval",
        "tool": "refund",
        "agent": "writer/support",
        "risk": "high",
        "rule": "refunds-ask",
        "deciders": "any admin or ada",
        "not_by": "bob",
        "expires_at": "2026-03-01T14:05:00.000000+00:00",
        "approvals": 1,
        "quorum": 2,
        "url": "https://turngate.example/requests/req_1",
    }


@pytest.mark.parametrize(
    ("item", "title"),
    [
        (item(kind="question", risk="low"), "An agent asks a person: refund (low risk)"),
        (item(kind="outcome"), "Did this call happen?: refund (high risk)"),
        (item(name="request.reminded"), "Still waiting for a decision: refund (high risk)"),
        (item(name="request.decided", status="rejected", decided_by="ada"), "Decided: rejected: refund"),
        (item(name="request.expired"), "Expired, the call is refused: refund"),
        (Item(seq=1, name="run.failed", at="x", run_id="run_1", agent="a", outcome="model_error"), "Run failed: a"),
        (Item(seq=1, name="run.failed", at="x"), "Run failed"),
    ],
)
def test_titles(item, title):
    """One line: what happened, to what, and how risky while it is pending."""
    assert message_text.title(Payload(items=(item,))) == title


def test_links_lead_to_request_run_or_inbox():
    """Ids are quoted, so none can change the target."""
    assert LINKS.to(item(request_id="../x?y#z")) == "https://turngate.example/requests/..%2Fx%3Fy%23z"
    assert LINKS.to(item(request_id=None)) == "https://turngate.example/runs/run_1"
    assert LINKS.of(Payload(items=(item(), item()))) == "https://turngate.example/"


@pytest.mark.parametrize("text", HOSTILE)
def test_slack_gets_no_entity_mention_or_markup_of_a_name(text):
    """The only `<…>` are Turngate's links; no mention, nothing hidden; formatting can't leave its code span."""
    for payload in (Payload(items=(hostile_item(text),)), Payload(items=(hostile_item(text),) * MAX_ITEMS, more=3)):
        message = slack_channel.message_of(payload, LINKS)
        assert (message["parse"], message["link_names"], message["mrkdwn"]) == ("none", False, False)
        assert len(message["blocks"]) <= 50
        for rendered in slack_texts(message):
            assert len(rendered) <= 3_000
            assert set(re.findall(r"<[^>]*>", rendered)) <= {
                "<https://turngate.example/requests/req_1|Open it in Turngate>",
                "<https://turngate.example/requests/req_1|open>",
                "<https://turngate.example/|Open the inbox>",
            }
            assert rendered.count("<") == rendered.count(">") == len(re.findall(r"<[^>]*>", rendered))
            assert not re.search(r"@(channel|here|everyone)", rendered, re.IGNORECASE)
            assert not any(is_hidden(char) for char in rendered)
        for block in message["blocks"]:
            assert block["text"]["verbatim"] is True
            for line in block["text"]["text"].split("\n"):
                assert line.count("`") % 2 == 0
                outside = "".join(re.sub(r"<[^>]*>", "", line).split("`")[::2])
                assert not set(outside.removeprefix("*").replace("*", "", 1)) & set("_~*")


@pytest.mark.parametrize("text", HOSTILE)
def test_email_gets_no_header_or_line_of_a_name(text):
    """A name stays on its line, in subject and body, with hidden characters made visible."""
    payload = Payload(items=(hostile_item(text),))
    message = email_sender().message_of("ntf_1", payload, AT)
    assert sorted({name.lower() for name in message}) == [
        "auto-submitted",
        "content-transfer-encoding",
        "content-type",
        "date",
        "from",
        "list-id",
        "message-id",
        "mime-version",
        "subject",
        "to",
        "x-auto-response-suppress",
    ]
    assert "victim" not in str(message["To"])
    assert len(message["Subject"]) <= 200
    body = message.get_content()
    assert not any(is_hidden(char) for char in body)
    starts = ("Approval needed: ", "  Tool: ", "  Agent: ", "  Risk: ", "  Rule: ", "  Who may decide: ", "  Expires: ")
    starts += ("  https://turngate.example/", "Nothing can be decided by answering")
    assert all(line.startswith(starts) for line in body.splitlines() if line)
    parsed = message.as_bytes()
    assert parsed.lower().count(b"\nbcc:") == 0


@pytest.mark.parametrize("text", HOSTILE)
def test_webhooks_are_ascii_and_bounded(text):
    """Names are raw in JSON, for programs, and no longer than 200 characters after the store."""
    body = json.dumps(webhook_channel.body_of(Payload(items=(hostile_item(text),)), LINKS, AT))
    assert body.isascii()
    assert json.loads(body)["data"]["tool"] == text


def test_a_digest_shows_50_and_counts_the_rest():
    """In every medium; the payload itself is bounded however long the burst."""
    payload = Payload()
    for start in range(0, 120, 40):
        payload = payload.with_items([item(seq=start + n, request_id=f"req_{start + n}") for n in range(40)])
    assert (len(payload.items), payload.more, payload.count) == (50, 70, 120)
    assert message_text.title(payload) == "120 events, 50+ to decide"
    slack = slack_texts(slack_channel.message_of(payload, LINKS))
    mail = email_sender().message_of("ntf_1", payload, AT).get_content()
    for text in ("\n".join(slack), mail):
        assert "req_49" in text
        assert "req_50" not in text
        assert "… and 70 more" in text
        assert "https://turngate.example/" in text
    hook = webhook_channel.body_of(payload, LINKS, AT)
    assert (hook["type"], len(hook["data"]["items"]), hook["data"]["more"]) == ("notifications.digest", 50, 70)
    assert hook["data"]["items"][3]["url"] == "https://turngate.example/requests/req_3"


def test_a_mail_is_recognised_as_automatic():
    """Message-ID from the delivery, List-Id from the channel, and no absence note answers it."""
    message = email_sender(password=SecretStr("p")).message_of("ntf_1", Payload(test=True), AT)
    assert message["Message-ID"] == "<ntf_1@example.com>"
    assert message["List-Id"] == "<ops.notifications.turngate.example>"
    assert message["Auto-Submitted"] == "auto-generated"
    assert message["To"] == "ada@example.com, bob@example.com"
    assert message["Date"] == "Sun, 01 Mar 2026 12:00:00 +0000"
    assert message["Subject"] == "[Turngate] Test message"


def test_proposed_rules_lead_to_the_policy_page() -> None:
    """Each medium says by whom, as a text, and links to where they are confirmed."""
    proposed = Item(seq=1, name="policy.proposed", at="2026-03-01T12:00:00+00:00", proposed_by="<!channel>\u202e")
    payload = Payload(items=(proposed,))
    assert message_text.title(payload) == "Rules wait for a second admin"
    assert message_text.facts(proposed) == [("Proposed by", "<!channel>⟨U+202E⟩")]
    page = "https://turngate.example/policy#proposal"
    slack = "\n".join(slack_texts(slack_channel.message_of(payload, LINKS)))
    assert f"<{page}|" in slack
    assert "<!channel>" not in slack
    assert webhook_channel.body_of(payload, LINKS, AT)["data"]["url"] == page
    assert page in email_sender().message_of("ntf_1", payload, AT).get_content()
