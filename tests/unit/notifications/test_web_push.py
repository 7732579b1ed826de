"""Web push: the message that only its browser can read, the signature, and what a message says."""

from __future__ import annotations

import json
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from pydantic import SecretStr
from support.notification_receivers import item
from support.push_browsers import FakeBrowser, raw, text_of, verified_claims

from turngate.domain.errors import ConfigurationError
from turngate.notifications import web_push
from turngate.notifications.items import Payload
from turngate.notifications.web_push import BrowserKeys, PushKey, encrypt, message_of
from turngate.runtime.push_key import PushKeySource
from turngate.wire.agents import PATH_MARK

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOSTILE = "pay\u202e<b>\n" + "x" * 500


def private(text: str) -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(int.from_bytes(raw(text)), ec.SECP256R1())


def test_the_example_of_rfc_8291_comes_out_byte_for_byte():
    """The keys, salt and text of its section 5 give exactly the body that is printed there."""
    public = "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4"
    body = encrypt(
        b"When I grow up, I want to be a watermelon",
        BrowserKeys.read(public, "BTBZMqHH6r4Tts7J_aSIgg"),
        own=private("yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw"),
        salt=raw("DGv6ra1nlYgDCS1FRnbzlw"),
        padded_to=0,
    )
    assert text_of(body) == (
        "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A_yl95"
        "bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN"
    )


def test_a_message_is_for_one_browser_and_says_nothing_by_its_length():
    """Its browser reads it, another one can't, and a short and a long message are of one size."""
    browser, other = FakeBrowser(), FakeBrowser()
    keys = BrowserKeys.read(text_of(browser.point), text_of(browser.auth))
    bodies = [
        encrypt(plain, keys, own=ec.generate_private_key(ec.SECP256R1()), salt=bytes(16))
        for plain in (b"a", b"b" * 2_000)
    ]
    assert [browser.decrypt(each) for each in bodies] == [b"a", b"b" * 2_000]
    with pytest.raises(InvalidTag):
        other.decrypt(bodies[0])
    assert len(bodies[0]) == len(bodies[1]) <= 4_096


def test_the_signature_names_the_push_service_for_a_day_at_most():
    """It verifies with the key in the header, for this host only; a changed claim doesn't."""
    key = PushKey.generate()
    header = key.authorization("https://push.example:8443/a/b?c", contact="https://turngate.example", at=AT)
    claims = verified_claims(header, key.public)
    assert claims == {
        "aud": "https://push.example:8443",
        "exp": AT.timestamp() + 43_200,
        "sub": "https://turngate.example",
    }
    token = header.removeprefix("vapid t=").partition(",")[0].split(".")
    forged = text_of(json.dumps({**claims, "aud": "https://evil.example"}).encode())
    with pytest.raises(InvalidSignature):
        verified_claims(header.replace(token[1], forged), key.public)
    assert "sub" not in verified_claims(key.authorization("https://p.example/", contact=None, at=AT), key.public)


def test_the_largest_message_fits():
    """Hostile names in many requests stay below the padded size, with hidden characters marked, on lines of their own."""
    payload = Payload(items=tuple(item(tool=HOSTILE * 3, agent=HOSTILE, request_id=f"req_{n}") for n in range(50)))
    message = message_of(payload, waiting=10**9)
    assert len(message) < web_push.PLAIN_BYTES
    read = json.loads(message)
    assert (read["title"], read["path"]) == ("50 requests wait for you", "/")
    assert "\u202e" not in message.decode()
    assert "⟨U+202E⟩" in read["body"]
    one = json.loads(message_of(Payload(items=(item(),)), waiting=3))
    assert one == {
        "title": "Approval needed: refund (high risk)",
        "body": f"writer{PATH_MARK}support",
        "path": "/requests/req_1",
        "tag": "req_1",
        "waiting": 3,
    }


@pytest.mark.parametrize(
    ("p256dh", "auth"),
    [
        ("", ""),
        ("AAAA", "BTBZMqHH6r4Tts7J_aSIgg"),
        ("B" * 87, "BTBZMqHH6r4Tts7J_aSIgg"),
        ("é", "é"),
        ("*" * 87, "!" * 22),
    ],
)
def test_what_is_no_key_of_a_browser_is_refused(p256dh: str, auth: str):
    """Too short, not on the curve, no base64url: each is a ValueError and nothing else."""
    with pytest.raises(ValueError, match=r".*"):
        BrowserKeys.read(p256dh, auth)


def test_the_servers_key_is_made_once_and_closed_to_others(tmp_path: Path):
    """A second process reads the first one's; only its owner can read the file; nothing shows the key."""
    file = tmp_path / "key.pem"
    source = PushKeySource(file=file)
    assert source.read().public == PushKeySource(file=file).read().public
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["key.pem"]
    before = file.read_text()
    source.ensure()
    assert file.read_text() == before
    assert file.read_text().split("\n")[1] not in repr(source)
    own = PushKey.generate()
    assert PushKeySource(file=file, pem=SecretStr(own.to_pem())).read().public == own.public


def test_what_is_no_private_key_on_p_256_is_refused(tmp_path: Path):
    """The error names the variable or the file, and doesn't repeat what is in it."""
    wrong = rsa.generate_private_key(65_537, 2_048).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for text in ("s3cret", wrong.decode()):
        with pytest.raises(
            ConfigurationError, match="TURNGATE_PUSH_KEY: must be a private key on the curve P-256"
        ) as refusal:
            PushKeySource(file=tmp_path / "none", pem=SecretStr(text)).read()
        assert text not in str(refusal.value)
    with pytest.raises(ConfigurationError, match="cannot be used"):
        PushKeySource(file=tmp_path / "no" / "such").read()
