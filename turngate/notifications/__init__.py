"""Notifications: messages to people and programs outside, by webhook, e-mail or Slack, from an outbox.

:mod:`~turngate.notifications.configuration` reads the file, :mod:`~turngate.notifications.selection` says which events a
channel wants, :mod:`~turngate.notifications.outbox_reader` turns events into deliveries,
:mod:`~turngate.notifications.send_delivery` sends one, and one module per kind of channel knows its medium. Messages carry links
and never the power to decide, and neither arguments nor an agent's words. The loop that drives it all belongs to the API
process (``turngate.approvals_api.events.notifier``). Must not import FastAPI, Temporal or the API.
"""
