"""The API's address and a token for it: how every command that uses the API connects, and what it asks the API first."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from turngate.client import Retries, SyncTurngateClient
from turngate.domain.errors import ConfigurationError
from turngate.runtime.locations import RunningStack
from turngate.runtime.settings import load_stack_settings

TOKEN_VARIABLE: Final = "TURNGATE_TOKEN"  # noqa: S105 - a variable's name
TOKEN_FILE: Final = "token"  # noqa: S105 - a file's name


@dataclass(frozen=True, kw_only=True)
class ApiLink:
    """An API's address and a token for it.

    Attributes:
        public_url: where browsers reach its pages, if that is elsewhere.
        data_dir: of the stack that serves the API; None when another's address and token are used.
        data_dir_is_option, url_is_option: whether an option of the command set it.
    """

    url: str
    token: str
    data_dir: Path | None
    public_url: str | None = None
    data_dir_is_option: bool = False
    url_is_option: bool = False

    @property
    def pages(self) -> str:
        """Return the address that a person opens, without a trailing slash."""
        return self.public_url or self.url

    def client(self) -> SyncTurngateClient:
        """Return a new client, which the caller closes. It does not retry: a user wants to see an error at once."""
        return SyncTurngateClient(self.url, token=self.token, retries=Retries(attempts=1))

    @property
    def options(self) -> str:
        """Return the options with which another command finds the same API, with a space before them; often empty."""
        return self.options_among({"--data-dir", "--url"})

    def options_among(self, accepted: Collection[str]) -> str:
        """Return those of the options that a command accepts which doesn't have both."""
        data_dir = f" --data-dir {shlex.quote(str(self.data_dir))}" if self.data_dir_is_option else ""
        url = f" --url {shlex.quote(self.url)}" if self.url_is_option else ""
        return (data_dir if "--data-dir" in accepted else "") + (url if "--url" in accepted else "")


def find_api(data_dir: Path | None = None, url: str | None = None) -> ApiLink:
    """Find the API: by ``url`` or TURNGATE_API_URL, else by the data directory of a stack on this machine.

    The token is TURNGATE_TOKEN, else the one that the stack left in its data directory. That one is only sent to the stack
    itself or to an address that the user names: what listens on the usual port may be anyone's.

    Raises ConfigurationError when there is no token, or no stack that it is for.
    """
    settings = load_stack_settings(data_dir=data_dir, api_url=url)
    note = RunningStack.read(settings.data_dir)
    address, public_url = settings.resolved_api_url, settings.public_url
    if note is not None and settings.api_url is None:
        address, public_url = note.api_url, public_url or note.public_url
    named, left = os.environ.get(TOKEN_VARIABLE, "").strip(), read_cli_token(settings.data_dir)
    if not named and left is not None and note is None and settings.api_url is None:
        raise ConfigurationError(
            f"no Turngate runs from {settings.data_dir} now: start it again with `turngate up`, or say where another one is "
            "with --data-dir or --url"
        )
    token = named or left
    if token is None and note is None and settings.api_url is None:
        raise ConfigurationError(
            f"no Turngate has run from {settings.data_dir}: start one with `turngate up`, run this command in the "
            "directory where it was started, or say where it is with --data-dir, or with --url and TURNGATE_TOKEN"
        )
    if token is None:
        raise ConfigurationError(
            f"there is no token for {address}: set TURNGATE_TOKEN to one from `turngate token NAME --scope SCOPE`"
        )
    return ApiLink(
        url=address,
        token=token,
        data_dir=settings.data_dir,
        public_url=public_url if url is None else None,
        data_dir_is_option=data_dir is not None,
        url_is_option=url is not None,
    )


def read_cli_token(data_dir: Path) -> str | None:
    """Return the token that a stack left for this user's commands; None when there is none, or it cannot be read."""
    try:
        return (data_dir / TOKEN_FILE).read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def only_agent(client: SyncTurngateClient) -> str:
    """Return the name of the only agent. Raises ConfigurationError when there are several, which it names, or none."""
    names = [agent.name for agent in client.list_agents() if not agent.sub_agent_of]
    if len(names) == 1:
        return names[0]
    if not names:
        raise ConfigurationError("there is no agent yet: start a worker that publishes one with `turngate up APP`")
    raise ConfigurationError(f"there are several agents: choose one with --agent: {', '.join(names)}")
