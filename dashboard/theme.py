"""How the pages are run and how they look: Streamlit's settings, light and dark colours, chart palette.

One place, handed to the server at its start. Prevents: a dashboard that works only with one machine's
config file, red accents that make a healthy fleet look alarming, and error details sent to browsers.
"""

from __future__ import annotations

from typing import Any

#: Okabe-Ito's colour-blind-safe hues, in a lightness that reads on white and on black; orange-red is kept
#: for what wants attention.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY = "#2B83C6", "#D18F00", "#009E73", "#D55E00", "#9A6BB0", "#56B4E9"
SERIES = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED)

LIGHT = {
    "primaryColor": "#1F5FA8",
    "backgroundColor": "#FFFFFF",
    "secondaryBackgroundColor": "#F2F5F9",
    "textColor": "#16202C",
    "borderColor": "#D5DCE5",
}
DARK = {
    "primaryColor": "#6FB1F5",
    "backgroundColor": "#10161D",
    "secondaryBackgroundColor": "#1A232D",
    "textColor": "#E6EDF5",
    "borderColor": "#35424F",
}


def server_settings(host: str, port: int, *, is_loopback: bool) -> dict[str, Any]:
    """Return Streamlit's settings by name. On loopback only loopback's names are answered."""
    settings: dict[str, Any] = {
        "server.address": host,
        "server.port": port,
        "server.headless": True,
        "server.fileWatcherType": "none",
        "server.runOnSave": False,
        "server.enableXsrfProtection": True,
        "server.enableCORS": True,
        "server.disconnectedSessionTTL": 600,
        "server.websocketPingInterval": 20,
        "server.maxUploadSize": 1,
        "browser.gatherUsageStats": False,
        "client.toolbarMode": "viewer",
        "client.showErrorDetails": "none",
        "client.showErrorLinks": "false",
        "client.disableDataExport": True,
        "runner.postScriptGC": False,
        "runner.fastReruns": True,
        "theme.paddingTop": "1rem",
        "theme.baseRadius": "small",
        "logger.level": "warning",
        "logger.enableRich": False,
    }
    if is_loopback:
        settings["server.allowedHosts"] = ["127.0.0.1", "localhost", "[::1]", "::1"]
    for mode, colours in (("light", LIGHT), ("dark", DARK)):
        settings |= {f"theme.{mode}.{name}": value for name, value in colours.items()}
    return settings
