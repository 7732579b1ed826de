"""The API's settings and its notification channels, made from the process's settings."""

from __future__ import annotations

import os
import shlex
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote, urlsplit

from turngate.approvals_api.gateway.labels import LabelSettings
from turngate.approvals_api.retention.apply import read_rules
from turngate.approvals_api.settings import (
    LOGIN_LINK,
    ApiSettings,
    OidcSettings,
    RateLimitSettings,
    RetentionSettings,
)
from turngate.http_environment import is_loopback, require_certificates
from turngate.notifications.configuration import Channel, load_channels
from turngate.notifications.message_text import Links
from turngate.runtime.settings import Settings
from turngate.runtime.workspaces import Workspaces


def api_settings(
    settings: Settings, channels: tuple[Channel, ...] = (), workspaces: Workspaces | None = None
) -> ApiSettings:
    """Return the API's settings."""
    known_as = {urlsplit(url).hostname for url in (settings.resolved_api_url, settings.resolved_public_url)}
    return ApiSettings(
        host=settings.api_host,
        more_host_names=frozenset(name for name in known_as if name),
        channels=channels,
        heartbeat_timeout_seconds=settings.heartbeat_timeout_seconds,
        public_url=settings.public_url or settings.api_url,
        login_link=login_link_command(settings),
        session_idle=settings.session_idle,
        rate_limits=_rate_limits(settings),
        oidc=_oidc(settings),
        temporal_pages=_temporal_pages(settings),
        approval_pace=0 if settings.rate_limits is False else settings.approval_pace,
        offer_rule_after=settings.offer_rule_after,
        policy_four_eyes=settings.policy_four_eyes,
        deployment_name=settings.deployment_name,
        disk=next((file.parent for file in settings.database_files), None),
        tracing=settings.tracing,
        retention=retention_settings(settings),
        workspaces=workspaces or Workspaces(),
    )


def login_link_command(settings: Settings) -> str:
    """Return the command that prints a link into this very stack, in any directory of this machine."""
    return f"{LOGIN_LINK} --data-dir {shlex.quote(str(settings.data_dir))}"


def retention_settings(settings: Settings) -> RetentionSettings | None:
    """Return the retention file and how often it is applied; None: there is none. Raises ConfigurationError if it is wrong."""
    if settings.retention is None:
        return None
    read_rules(settings.retention)
    every = timedelta(seconds=settings.retention_every_seconds) or None
    return RetentionSettings(file=settings.retention, every=every)


def label_settings(settings: Settings) -> LabelSettings:
    """Return what runs are labelled with in Temporal."""
    return LabelSettings(
        search_attributes=settings.search_attributes,
        priority=settings.priority,
        fairness=settings.fairness,
    )


def _temporal_pages(settings: Settings) -> str | None:
    if settings.temporal_ui_url is None:
        return None
    return f"{settings.temporal_ui_url}/namespaces/{quote(settings.temporal_namespace, safe='')}/workflows"


def _rate_limits(settings: Settings) -> RateLimitSettings:
    """Return the limits. On loopback requests are counted only on demand: the owner's own scripts may send any number."""
    if settings.rate_limits is False:
        return RateLimitSettings(logins_per_name=None, logins_per_address=None)
    counted = settings.rate_limits is True or not is_loopback(settings.api_host)
    return RateLimitSettings(
        per_second=settings.rate_limit_per_second if counted else None,
        burst=settings.rate_limit_burst,
        logins_per_name=settings.login_limit_per_name,
        logins_per_address=settings.login_limit_per_address,
    )


def _oidc(settings: Settings) -> OidcSettings | None:
    secret = settings.oidc_client_secret
    if settings.oidc_issuer is None or settings.oidc_client_id is None or secret is None:
        return None
    return OidcSettings(
        issuer=settings.oidc_issuer,
        client_id=settings.oidc_client_id,
        client_secret=secret.get_secret_value(),
        scopes=settings.oidc_scopes,
        role_claim=settings.oidc_role_claim,
        session_lifetime=timedelta(seconds=settings.oidc_session_seconds),
        admin_values=settings.oidc_admin_values,
        operator_values=settings.oidc_operator_values,
        viewer_values=settings.oidc_viewer_values,
        default_role=None if settings.oidc_default_role == "none" else settings.oidc_default_role,
    )


def configured_channels(settings: Settings, file: Path | None = None) -> tuple[Channel, ...]:
    """Return the channels of ``file``, else of TURNGATE_NOTIFICATIONS; none without either.

    Raises ConfigurationError when the file, or a variable that it names, is wrong.
    """
    path = file or settings.notifications
    if path is not None:
        require_certificates()
    return () if path is None else load_channels(path, os.environ, Links(settings.resolved_public_url))


def link_warning(settings: Settings) -> str | None:
    """Return a warning about the links in messages; None when there is nothing to warn of."""
    if not is_loopback((urlsplit(settings.resolved_public_url).hostname or "").strip("[]")):
        return None
    return (
        f"links in messages lead to {settings.resolved_public_url}, which works on this machine only: "
        "set TURNGATE_PUBLIC_URL to the address at which people reach Turngate"
    )
