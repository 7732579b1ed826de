"""Credentials in free text: 30 shapes, and words that look a little like them. Made from a seed: no file holds a real shape."""

from __future__ import annotations

import base64
import random
import string
from collections.abc import Callable
from dataclasses import dataclass

LETTERS = string.ascii_letters + string.digits
URL_SAFE = LETTERS + "-_"
HEX = "0123456789abcdef"
UPPER = string.ascii_uppercase + string.digits


@dataclass(frozen=True)
class Credential:
    """``text``: as someone writes it; ``secret``: what of it no one may see."""

    shape: str
    text: str
    secret: str


class Maker:
    """Makes credentials; the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - the same ones each time

    def chars(self, alphabet: str, count: int) -> str:
        """Return random characters, with a digit and letters of both cases where the alphabet has them."""
        while True:
            value = "".join(self._random.choices(alphabet, k=count))
            if any(each.isdigit() for each in value) and any(each.isalpha() for each in value) and value[0] not in "-_":
                return value

    def basic(self) -> str:
        return base64.b64encode(f"ada:{self.chars(LETTERS, 12)}".encode()).decode()

    def jwt(self) -> str:
        return f"eyJ{self.chars(URL_SAFE, 30)}.eyJ{self.chars(URL_SAFE, 60)}.{self.chars(URL_SAFE, 43)}"

    def pem(self, label: str) -> str:
        lines = "\n".join(self.chars(LETTERS + "+/", 64) for _line in range(4))
        return f"-----BEGIN {label}-----\n{lines}\n-----END {label}-----"


def whole(make: Callable[[Maker], str]) -> Callable[[Maker], tuple[str, str]]:
    """A shape that is secret as a whole."""

    def both(maker: Maker) -> tuple[str, str]:
        value = make(maker)
        return value, value

    return both


def after(before: str, make: Callable[[Maker], str], rest: str = "") -> Callable[[Maker], tuple[str, str]]:
    """A shape of which what is before and after it may be seen."""

    def both(maker: Maker) -> tuple[str, str]:
        value = make(maker)
        return f"{before}{value}{rest}", value

    return both


SHAPES: dict[str, Callable[[Maker], tuple[str, str]]] = {
    "openai": whole(lambda m: f"sk-proj-{m.chars(URL_SAFE, 48)}"),
    "anthropic": whole(lambda m: f"sk-ant-api03-{m.chars(URL_SAFE, 60)}"),
    "aws id": whole(lambda m: f"AKIA{m.chars(UPPER, 16)}"),
    "aws key": after("aws_secret_access_key = ", lambda m: m.chars(LETTERS + "/+", 40)),
    "github": whole(lambda m: f"ghp_{m.chars(LETTERS, 36)}"),
    "github fine": whole(lambda m: f"github_pat_{m.chars(LETTERS, 22)}_{m.chars(LETTERS, 59)}"),
    "gitlab": whole(lambda m: f"glpat-{m.chars(URL_SAFE, 20)}"),
    "slack bot": whole(lambda m: f"xoxb-{m.chars(string.digits + 'a', 12)}-{m.chars(LETTERS, 24)}"),
    "slack hook": after("https://hooks.slack.com/services/", lambda m: f"T0{m.chars(UPPER, 8)}/{m.chars(LETTERS, 24)}"),
    "stripe": whole(lambda m: f"sk_live_{m.chars(LETTERS, 24)}"),
    "stripe hook": whole(lambda m: f"whsec_{m.chars(LETTERS, 32)}"),
    "google api": whole(lambda m: f"AIza{m.chars(URL_SAFE, 35)}"),
    "google oauth": whole(lambda m: f"ya29.{m.chars(URL_SAFE, 60)}"),
    "jwt": whole(Maker.jwt),
    "pem": whole(lambda m: m.pem("RSA PRIVATE KEY")),
    "openssh": whole(lambda m: m.pem("OPENSSH PRIVATE KEY")),
    "bearer": after("Authorization: Bearer ", lambda m: m.chars(LETTERS, 30)),
    "basic": after("Authorization: Basic ", Maker.basic),
    "url": after("postgresql://turngate:", lambda m: m.chars(LETTERS, 14), "@db.internal:5432/app"),
    "query": after("https://api.test/v1?access_token=", lambda m: m.chars(LETTERS, 24), "&page=2"),
    "npm": whole(lambda m: f"npm_{m.chars(LETTERS, 36)}"),
    "pypi": whole(lambda m: f"pypi-AgEI{m.chars(URL_SAFE, 60)}"),
    "sendgrid": whole(lambda m: f"SG.{m.chars(URL_SAFE, 22)}.{m.chars(URL_SAFE, 43)}"),
    "twilio": whole(lambda m: f"SK{m.chars(HEX, 32)}"),
    "hugging face": whole(lambda m: f"hf_{m.chars(LETTERS, 34)}"),
    "vault": whole(lambda m: f"hvs.{m.chars(URL_SAFE, 24)}"),
    "azure": after("AccountName=a;AccountKey=", lambda m: m.chars(LETTERS + "+/", 86), "==;EndpointSuffix=core"),
    "password": after("DB_PASSWORD=", lambda m: m.chars(LETTERS, 14)),
    "api key": after('"api_key": "', lambda m: m.chars(LETTERS, 32), '"'),
    "option": after("deploy --token ", lambda m: m.chars(LETTERS, 20)),
}  # fmt: skip


def planted(count: int, *, seed: int = 17) -> list[Credential]:
    """Return that many credentials, of all shapes in turn, each different from all others."""
    maker = Maker(seed)
    names = list(SHAPES)
    return [Credential(name, *SHAPES[name](maker)) for name in (names[at % len(names)] for at in range(count))]


def harmless(*, seed: int = 18) -> list[str]:
    """Return texts with long and odd words in them that are no credentials."""
    maker = Maker(seed)
    picture = base64.b64encode(
        random.Random(seed).randbytes(60_000)  # noqa: S311 - as above
    ).decode()
    return [
        f"git show {maker.chars(HEX, 40)}",
        f"Merge commit {maker.chars(HEX, 12)} into release-2026.11",
        "run 5f0c1a52-7a3e-4d8e-9f6b-2f1f0a6c9d11 failed",
        f"data:image/png;base64,{picture}",
        picture,
        "/usr/lib/python3.11/site-packages/sklearn/ensemble/_hist_gradient_boosting/gradient_boosting.py",
        "s3://bucket-2026/backups/2026-11-22/turngate-0.1.0-cp311-manylinux_2_17_x86_64.whl",
        "Refund order A-10298-2026/11 of customer C-5512",
        "sha256:" + maker.chars(HEX, 64),
        "task-management-system-for-distributed-teams and sk-learn-style-estimators",
        "The password is not known; ask for a new token. Token: none. Secret: see the vault.",
        "max_tokens: 4096, input_tokens=123456789, next_token=null, tokenizer=o200k_base",
        "password=${DB_PASSWORD} token=<your-token-2> secret=$SECRET_2026 api_key={{key_1}}",
        "token = tokenizer.encode_batch2(text)[0]; secret = os.environ['APP_SECRET_2']",
        "secret_file=/run/secrets/db_password_1 --token-file ./tokens/ci-2026.txt",
        "https://docs.test:8443/guide#tokens and git@github.com:owner/repo-2026.git",
        "postgresql://turngate@db:5432/x",
        "the bearer of news, basic information, Basic understanding of authorization: required",
        "-----BEGIN CERTIFICATE-----\nMIIB8zCCAVygAwIBAgIUE2k1\n-----END CERTIFICATE-----",
        "ISBN 978-3-16-148410-0, IBAN DE89370400440532013000, +49 30 901820",
        "npm_config_registry_url_2 hf_transformers_model_v2 AKIA is a prefix, eyJ too",
        "3f2a key-value-store-2 and SKU SK0012345",
    ]  # fmt: skip
