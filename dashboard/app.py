"""The dashboard's application: Streamlit's pages behind our door, with our routes beside them.

Prevents: garbage collection of the whole heap after each tick of each session, and a traceback in a
browser where a sentence with a number to ask for belongs.
"""

from __future__ import annotations

import gc
import logging
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import streamlit as st
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware

from dashboard import components, routes_estimates
from dashboard.door import Door
from dashboard.routes import routes, warm
from fleet.errors import FleetError

log = logging.getLogger(__name__)
FRAME = Path(__file__).with_name("frame.py")


def build_app() -> st.App:
    """Return the application; `python -m dashboard` runs it."""
    return st.App(
        FRAME,
        routes=[*routes(), *routes_estimates.routes()],
        middleware=[Middleware(Door)],
        lifespan=lifespan,
        on_script_error=on_script_error,
    )


@asynccontextmanager
async def lifespan(_app: st.App) -> AsyncGenerator[None]:
    """Warm up, then keep the collector away from everything that was loaded at the start."""
    await run_in_threadpool(warm)
    gc.collect()
    gc.freeze()
    yield


def on_script_error(exc: Exception) -> bool:
    """Show an error in words; what nobody expected goes to the log under a number the page shows."""
    if isinstance(exc, FleetError):
        components.failure(exc)
        return True
    number = secrets.token_hex(4)
    log.error("page failed", extra={"incident": number}, exc_info=exc)
    st.error(
        f"This page failed. The log has the details under incident {number}. "
        "Reload the page; if it fails again, the other pages and `rhodeck status` still work.",
        title="Something went wrong",
    )
    return True
