"""The notifications file: what it may contain, and the errors about a wrong one."""

from __future__ import annotations

import base64
import contextlib
from datetime import timedelta
from pathlib import Path

import pytest
from standardwebhooks import Webhook
from support.servers.notification_receivers import LINKS

from turngate.domain.errors import ConfigurationError, NotFoundError
from turngate.notifications.configuration import Channel, load_channels, named_channel
from turngate.notifications.selection import DEFAULT_EVENTS

SECRET = "whsec_" + "QUJD" * 8
ENVIRONMENT = {
    "HOOK_SECRET": SECRET,
    "OLD_SECRET": "whsec_" + "REVG" * 10,
    "SLACK_URL": "https://hooks.slack.example/services/T0/B0/slack-s3cret",
    "PRIVATE_URL": "http://10.0.0.5/hook-s3cret",
    "SMTP_PASSWORD": "smtp-s3cret",
    "EMPTY": "",
    "SHORT": "whsec_QUJD",
    "NO_PREFIX": "QUJD" * 8,
    "NO_BASE64": "whsec_!!!!" + "QUJD" * 8,
    "NO_URL": "not-a-url-s3cret",
}
HOOK = 'type = "webhook"\nurl = "https://hooks.example/in"\nsecret_env = "HOOK_SECRET"\n'
MAIL = 'type = "email"\nhost = "smtp.example"\nfrom = "tg@example.com"\nto = ["ada@example.com"]\n'
SLACK = 'type = "slack"\nurl_env = "SLACK_URL"\n'


def load(tmp_path: Path, *tables: str, named: bool = True) -> tuple[Channel, ...]:
    names = (f'name = "ch{n}"\n' if named else "" for n in range(9))
    path = tmp_path / "notify.toml"
    path.write_text("\n".join(f"[[channel]]\n{name}{table}" for name, table in zip(names, tables, strict=False)))
    return load_channels(path, ENVIRONMENT, LINKS)


def test_a_channel_of_each_kind(tmp_path: Path):
    """Kind, default events and a ten-second digest; secrets are never shown."""
    both = HOOK.replace('"HOOK_SECRET"', '["HOOK_SECRET", "OLD_SECRET"]')
    mail = MAIL + 'user = "tg"\npassword_env = "SMTP_PASSWORD"\ntls = "tls"\nport = 465\n'
    private = (
        'type = "slack"\nurl_env = "PRIVATE_URL"\nallow_private = true\ndigest_seconds = 0\nrisk_at_least = "high"\n'
    )
    channels = load(tmp_path, both, mail, SLACK, private)
    assert [channel.kind for channel in channels] == ["webhook", "email", "slack", "slack"]
    assert tuple(channels[0].selection.events) == DEFAULT_EVENTS
    assert (channels[0].window, channels[3].window) == (timedelta(seconds=10), timedelta(0))
    assert channels[3].selection.risk_at_least == "high"
    assert len(channels[0].sender.secrets) == 2
    assert "s3cret" not in repr(channels)
    assert "QUJD" not in repr(channels)
    assert named_channel(channels, "ch2") is channels[2]
    with pytest.raises(NotFoundError, match="there are: ch0, ch1, ch2, ch3"):
        named_channel(channels, "nope")


@pytest.mark.parametrize("size", [23, 24, 25, 26, 32, 64, 65])
def test_a_webhooks_secret_has_24_to_64_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int):
    """In base64, with its padding or without, as the library accepts both."""
    encoded = base64.b64encode(bytes(range(size))).decode()
    for text in (encoded, encoded.rstrip("=")):
        monkeypatch.setitem(ENVIRONMENT, "HOOK_SECRET", f"whsec_{text}")
        with contextlib.nullcontext() if 24 <= size <= 64 else pytest.raises(ConfigurationError, match="HOOK_SECRET"):
            (channel,) = load(tmp_path, HOOK)
            assert Webhook(channel.sender.secrets[0].get_secret_value())


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ('type = "carrier-pigeon"\n', "type is one of webhook, email, slack, not 'carrier-pigeon'"),
        ("", "type is one of webhook, email, slack"),
        (HOOK + "colour = 1\n", "colour: Extra inputs are not permitted"),
        (HOOK + 'events = ["request.openned"]\n', "'request.openned' fits no event; there are: request.opened"),
        (HOOK + "events = []\n", "events: List should have at least 1 item"),
        (HOOK + 'risk_at_least = "hi"\n', "risk_at_least: Input should be 'low', 'medium' or 'high'"),
        (HOOK + 'digest_seconds = "10"\n', "digest_seconds: Input should be a valid integer"),
        (HOOK + "digest_seconds = -1\n", "digest_seconds: Input should be greater than or equal to 0"),
        (HOOK.replace("HOOK_SECRET", "MISSING"), "the environment variable MISSING is not set"),
        (HOOK.replace("HOOK_SECRET", "EMPTY"), "the environment variable EMPTY is not set"),
        (HOOK.replace("HOOK_SECRET", "SHORT"), "SHORT must be whsec_ and 24 to 64 bytes in base64; make one with"),
        (HOOK.replace("HOOK_SECRET", "NO_PREFIX"), "NO_PREFIX must be whsec_"),
        (HOOK.replace("HOOK_SECRET", "NO_BASE64"), "NO_BASE64 must be whsec_"),
        (HOOK.replace("HOOK_SECRET", SECRET), "secret_env.0: this is a secret itself"),
        (HOOK.replace("https:", "http:"), "must begin with https://"),
        (HOOK.replace("https://", "ftp://"), "the URL cannot be used"),
        (HOOK.replace("hooks.example", "u:s3cret@hooks.example"), "must not hold a user name or password"),
        (HOOK + 'url_env = "NO_URL"\n', "say where to"),
        ('type = "webhook"\nsecret_env = "HOOK_SECRET"\n', "say where to"),
        ('type = "slack"\nurl_env = "NO_URL"\n', "in NO_URL, the URL cannot be used"),
        ('type = "slack"\nurl_env = "PRIVATE_URL"\n', "in PRIVATE_URL, the URL must begin with https://"),
        ('type = "slack"\nurl = "https://x.example"\n', "url_env: Field required"),
        (MAIL.replace("tg@example.com", "tg@example.com\\r\\nBcc: x@example.com"), "is no plain e-mail address"),
        (MAIL.replace("ada@example.com", "Ada <ada@example.com>"), "is no plain e-mail address"),
        (MAIL.replace('["ada@example.com"]', "[]"), "to: List should have at least 1 item"),
        (MAIL + 'user = "tg"\n', "give both user and password_env, or neither"),
        (MAIL + 'tls = "none"\nuser = "tg"\npassword_env = "SMTP_PASSWORD"\n', "would travel in the clear"),
        (MAIL + 'tls = "maybe"\n', "tls: Input should be 'starttls', 'tls' or 'none'"),
    ],
)
def test_a_wrong_channels_error_names_file_channel_and_fix_and_no_secret(tmp_path: Path, table: str, problem: str):
    """The first problem ends the start, and its message says where to look."""
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, HOOK, table)
    message = str(caught.value)
    assert message.startswith(f"notifications file {tmp_path}/notify.toml, channel 'ch1': ")
    assert problem in message
    assert "QUJD" not in message
    assert "s3cret" not in message


@pytest.mark.parametrize("name", ['""', '"a b"', '"a.b"', '"a\\nb"', '"-a"', '"' + "a" * 64 + '"', "7"])
def test_a_channels_name_is_a_plain_word(tmp_path: Path, name: str):
    """It is used in headers and addresses."""
    with pytest.raises(ConfigurationError, match="name: "):
        load(tmp_path, f"name = {name}\n{HOOK}", named=False)


def test_a_file_that_cannot_be_read(tmp_path: Path):
    """Missing, not TOML, without channels, with unknown keys, or with a duplicate name."""
    path = tmp_path / "n.toml"
    for text, problem in (
        (None, "cannot be read"),
        ("[[channel", "is not TOML"),
        ("", r"holds one or more \[\[channel\]\] tables"),
        (f'[[channel]]\nname = "a"\n{HOOK}[defaults]\n', "and not 'defaults'"),
        ("channel = 3", r"holds one or more \[\[channel\]\]"),
        ("channel = [3]", "channel number 1: type is one of"),
        (f'[[channel]]\nname = "a"\n{HOOK}[[channel]]\nname = "a"\n{SLACK}', "channel 'a': another channel has this"),
    ):
        if text is not None:
            path.write_text(text)
        with pytest.raises(ConfigurationError, match=problem):
            load_channels(path, ENVIRONMENT, LINKS)
