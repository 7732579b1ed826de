"""Headers of every answer: what a browser may load, frame and send on. Strict, because pages show agents' own words."""

from __future__ import annotations

from collections.abc import Mapping

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "manifest-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
UNUSED_FEATURES = (
    *("accelerometer", "camera", "display-capture", "geolocation", "gyroscope", "hid", "magnetometer"),
    *("microphone", "midi", "payment", "serial", "usb", "xr-spatial-tracking"),
)
"""Of browsers: no page asks for one, and what is put into a page can't either. Named are those that Chromium knows: it
complains of any other on each page."""
SECURITY_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    # Not no-referrer: with it, browsers send "Origin: null" with our own forms, and on plain http nothing else tells whose they
    # are (turngate.approvals_api.http.authentication.require_same_origin). Other sites get no referrer either way.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Permissions-Policy": ", ".join(f"{feature}=()" for feature in UNUSED_FEATURES),
}
ONLY_HTTPS: Mapping[str, str] = {"Strict-Transport-Security": "max-age=31536000"}
"""Besides, where the public address begins with https: for a year, browsers don't try http there."""
