"""``turngate notify``: check the notifications file, test a channel, read the delivery log, retry a delivery.

The commands use the store directly, so they need no running API. A delivery that they make due is sent by a running API.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Final, get_args

import typer

from turngate.approvals_api.events.deliveries import delivery_page, send_again
from turngate.cli import stores, terminal
from turngate.cli.api_settings import configured_channels, link_warning
from turngate.cli.errors import EXIT_WENT_WRONG
from turngate.cli.options import AsJson, DataDir
from turngate.domain.errors import ConfigurationError
from turngate.domain.runs.deliveries import DeliveryStatus
from turngate.notifications.configuration import Channel, named_channel
from turngate.notifications.send_delivery import send_test
from turngate.notifications.send_results import Delivered, SendResult
from turngate.runtime.settings import Settings, load_stack_settings
from turngate.store.events.deliveries import Delivery
from turngate.text.instants import second
from turngate.text.plain_text import plain_line
from turngate.wire.notifications import DeliveryView

MAX_ROWS: Final = 200

app = typer.Typer(no_args_is_help=True, help="Notifications: check channels, test them, read the delivery log.")


@app.command()
def check(
    file: Annotated[
        Path | None, typer.Argument(show_default="$TURNGATE_NOTIFICATIONS", help="The notifications file (TOML).")
    ] = None,
) -> None:
    """Read a notifications file with the secrets it names, and print who gets which messages. Sends nothing."""
    settings = load_stack_settings()
    for channel in _channels(settings, file):
        terminal.line((channel.name, "bold"), f" ({channel.kind}): {_selection_words(channel)}")
    warning = link_warning(settings)
    if warning is not None:
        terminal.note(warning)


@app.command("test")
def try_channel(
    channel: Annotated[str, typer.Argument(metavar="CHANNEL", help="The channel's name in the notifications file.")],
    data_dir: DataDir = None,
) -> None:
    """Send one test message to a channel and print the answer. The delivery log shows it too."""
    settings = load_stack_settings(data_dir=data_dir)
    delivery, result = asyncio.run(_send_test(settings, named_channel(_channels(settings, None), channel)))
    if not isinstance(result, Delivered):
        terminal.error(f"{channel} refused {delivery.id}: {plain_line(result.answer)}")
        raise typer.Exit(EXIT_WENT_WRONG)
    terminal.line(f"{channel} accepted {delivery.id}: {plain_line(result.answer)}")


@app.command()
def log(
    channel: Annotated[str | None, typer.Option(help="Only this channel.", show_default="all")] = None,
    status: Annotated[DeliveryStatus | None, typer.Option(help="Only this status.", show_default="all")] = None,
    limit: Annotated[int, typer.Option(min=1, max=MAX_ROWS, help="How many, newest first.")] = 20,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """List deliveries, newest first: status, attempts, and the receiver's last answer."""
    deliveries = asyncio.run(_read(load_stack_settings(data_dir=data_dir), channel, status, limit))
    if as_json:
        terminal.document("[" + ",\n ".join(each.model_dump_json() for each in deliveries) + "]")
        return
    if not deliveries:
        terminal.note("no deliveries")
        return
    rows = [
        (
            each.id,
            each.channel,
            each.status,
            str(each.attempts),
            second(each.created_at),
            plain_line(each.title, 60),
            plain_line(each.last_answer, 80),
        )
        for each in deliveries
    ]
    terminal.table(("DELIVERY", "CHANNEL", "STATUS", "ATTEMPTS", "SINCE", "MESSAGE", "LAST ANSWER"), rows)


@app.command()
def retry(
    delivery: Annotated[str, typer.Argument(metavar="DELIVERY", help="The delivery's id, from `turngate notify log`.")],
    data_dir: DataDir = None,
) -> None:
    """Send a failed or waiting delivery again. A running API does that within seconds."""
    settings = load_stack_settings(data_dir=data_dir)
    asyncio.run(_send_again(settings, delivery))
    terminal.line(f"{delivery} is due now; `turngate notify log` shows the result")


def _channels(settings: Settings, file: Path | None) -> tuple[Channel, ...]:
    channels = configured_channels(settings, file)
    if not channels:
        raise ConfigurationError("there is no notifications file: set TURNGATE_NOTIFICATIONS to one, or name it")
    return channels


def _selection_words(channel: Channel) -> str:
    """Return in words which events the channel gets."""
    chosen = channel.selection
    words = ", ".join(chosen.events)
    if chosen.agents is not None:
        words += f"; of agents {', '.join(chosen.agents)}"
    if chosen.tools is not None:
        words += f"; of tools {', '.join(chosen.tools)}"
    if chosen.rules is not None:
        words += f"; of rules {', '.join(chosen.rules)}"
    if chosen.risk_at_least is not None:
        words += f"; of {chosen.risk_at_least} risk or more"
    return f"{words}; digest after {channel.window.total_seconds():g} s" if channel.window else f"{words}; no digest"


async def _send_test(settings: Settings, channel: Channel) -> tuple[Delivery, SendResult]:
    async with stores.opened_store(settings) as database:
        return await send_test(database, channel)


async def _read(
    settings: Settings, channel: str | None, status: DeliveryStatus | None, limit: int
) -> list[DeliveryView]:
    wanted: DeliveryStatus | None = next((each for each in get_args(DeliveryStatus) if each == status), None)
    async with stores.opened_store(settings) as database, database.read() as conn:
        return (await delivery_page(conn, limit=limit, channel=channel, status=wanted)).items


async def _send_again(settings: Settings, delivery_id: str) -> None:
    async with stores.opened_store(settings) as database, database.write() as conn:
        await send_again(conn, delivery_id, by=await stores.acting_as(conn))
