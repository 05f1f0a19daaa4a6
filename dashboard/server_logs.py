"""Makes Streamlit's and uvicorn's own log lines ours: JSON, redacted, one a line, on standard error.

Streamlit gives each of its loggers a handler and keeps records from the process's own; it also prints a
banner. Prevents: a coloured traceback over forty lines in a log that machines read line by line.
"""

from __future__ import annotations

import logging
from typing import Any

from streamlit import logger as streamlit_logger
from streamlit.web import bootstrap
from uvicorn.config import LOGGING_CONFIG

log = logging.getLogger(__name__)
_HANDLER = "streamlit_console_handler"


def adopt() -> None:
    """Send what Streamlit's loggers say to the process's handler, those it makes later included."""
    streamlit_logger.setup_formatter = _let_through
    bootstrap._print_url = _say_that_it_listens  # pyright: ignore[reportPrivateUsage]
    for settings in LOGGING_CONFIG["loggers"].values():
        settings |= {"handlers": [], "propagate": True, "level": "WARNING"}
    for name in list(logging.Logger.manager.loggerDict):
        known = logging.getLogger(name)
        if hasattr(known, _HANDLER):
            _let_through(known)


def _let_through(known: logging.Logger) -> None:
    own: logging.Handler | None = getattr(known, _HANDLER, None)
    if own is not None:
        known.removeHandler(own)
    known.propagate = True


def _say_that_it_listens(*_: Any, **__: Any) -> None:
    log.info("the dashboard listens")
