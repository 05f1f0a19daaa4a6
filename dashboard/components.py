"""Draws what view models say: cards, badges, notices, live charts. No thresholds, no arithmetic.

Prevents: two pages that draw the same state differently, and a problem shown without what to do about it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Any

import streamlit as st

from dashboard import live_plot, recovery, words
from dashboard.charts import Figure
from dashboard.data import Pulse, Reading
from dashboard.marks import marked
from dashboard.outage import public
from dashboard.theme import DARK, LIGHT
from dashboard.times import Zone, age
from dashboard.viewmodels import QUALITY_PAGE, Card, Notice, last_known
from fleet.errors import FleetError

_plot = st.components.v2.component(
    "rhodeck_live_plot",
    html=live_plot.LIVE_PLOT_HTML,
    js=live_plot.LIVE_PLOT_JS,
    isolate_styles=False,
)
_badge = st.components.v2.component(
    "rhodeck_freshness", html=live_plot.BADGE_HTML, css=live_plot.BADGE_CSS, js=live_plot.BADGE_JS
)
_go = st.components.v2.component("rhodeck_go", js=live_plot.GO_JS)


#: The box around the strip of filters on top of every page.
STRIP = "[data-testid=stLayoutWrapper]:has(>.st-key-strip)"
#: A table longer than this scrolls within itself.
ROWS_AT_ONCE, LONG_TABLE_PX = 24, 880
#: Height of a row whose words wrap: the table wraps from 65 px on.
WRAPPED_ROW_PX = 72


def live(draw: Callable[[], None], every_s: float | None) -> None:
    """Run `draw` as the page's one fragment, again every `every_s` seconds (None: paused)."""
    st.fragment(draw, run_every=every_s)()


def freshness(pulse: Reading[Pulse], now: datetime, *, paused: bool, stale_after_s: float) -> None:
    """Draw the badge that counts the age of the newest round in the browser."""
    found = pulse.value
    _badge(
        key="freshness",
        width=235,
        data={
            "server_ms": now.timestamp() * 1000,
            "round_ms": found.at.timestamp() * 1000 if found and found.at else None,
            "stale_after_s": stale_after_s,
            "silence_after_s": 30,
            "paused": paused,
            "away": pulse.problem is not None,
        },
    )


def go(to: str) -> None:
    """Send the browser to `to`, with this page's address as `next`."""
    _go(key="go", data={"to": to})


def plot(figure: Figure, key: str, *, node: str | None = None) -> None:
    """Draw a figure so that zoom, legend and hover outlive the next update.

    A chart over time gets marks of what happened: of one `node`, or of the whole fleet.
    """
    drawn = marked(figure, node)
    _plot(
        key=key,
        data={"spec": drawn.spec, "height": drawn.height_px, "summary": drawn.summary},
        height=drawn.height_px,
    )


def cards(items: Sequence[Card], *, why: str = "", is_last_known: bool = False) -> None:
    """Draw numbers in one row, each with its word: never by colour alone.

    `why`: the source whose findings explain what is unknown; a card without a value links to them.
    `is_last_known`: they are of an earlier answer, and say nothing of the present.
    """
    items = last_known(items) if is_last_known else items
    grid = st.grid(columns=len(items), min_column_width=150, key=f"cards_{len(items)}_{items[0].key}")
    for item in items:
        colour, icon = words.LOOKS[item.tone]
        with grid.container(border=True, height="stretch", gap=None, key=f"card_{item.key}"):
            st.caption(item.label, help=item.help or None)
            st.markdown(f"<span class='rk-value'>{words.plain(item.value)}</span>", unsafe_allow_html=True)
            st.badge(item.word, icon=icon, color=colour)  # pyright: ignore[reportArgumentType]
            if item.note:
                st.caption(words.plain(item.note))
            if why and item.tone == "unknown":
                st.page_link(QUALITY_PAGE, label="Why?", query_params={"source": why})


def notices(items: Sequence[Notice], beside: Callable[[Notice], None]) -> None:
    """Draw what needs attention, worst first, each with reason, since when, where to go, what to do."""
    for item in items:
        colour, icon = words.LOOKS[item.tone]
        with st.container(horizontal=True, wrap=False, vertical_alignment="center", gap="small"):
            st.badge(item.word, icon=icon, color=colour, width=126)  # pyright: ignore[reportArgumentType]
            st.markdown(
                f"{words.with_code(item.text)}  \n:small[{words.plain(item.since)}]", width="stretch"
            )
            if item.page:
                st.page_link(item.page, label=item.link, query_params=item.query or None)
            beside(item)


def problem(found: Reading[Any], now: datetime, zone: Zone) -> bool:
    """Say that a question failed, with the age of what is shown instead. True if nothing can be shown."""
    if found.problem is None:
        return False
    shown = (
        "Nothing can be shown until it answers."
        if found.as_of is None
        else f"Shown below is what was last known, {age((now - found.as_of).total_seconds())} old "
        f"(from {zone.clock(found.as_of)})."
    )
    failure(found.problem, title="Not up to date", also=shown)
    if found.value is None:
        recovery.note()
    return found.value is None


def failure(exc: FleetError, *, title: str | None = None, also: str = "") -> None:
    """Show an expected error: what is wrong, what to do, which field. No address of the database."""
    exc = public(exc)
    field = f" Field: {words.plain(exc.field)}." if exc.field else ""
    hint = f" {words.with_code(exc.hint)}." if exc.hint else ""
    body = f"{words.with_code(exc.message)}.{hint}{field} {also}".replace("..", ".")
    st.error(body.strip(), title=title)


def table(
    rows: dict[str, list[Any]],
    columns: dict[str, Any],
    *,
    key: str,
    height: Any = "content",
    is_wrapped: bool = False,
    more: Collection[str] = (),
    remarks: Collection[str] = (),
) -> None:
    """Draw a table of columns, in the order of `columns`. Lists are their values, in the order of the rows.

    `is_wrapped` gives each row three lines for what does not fit into one. Columns in `more` are shown on
    demand: the others fit a window of 1440 pixels, and those that matter come first, for one of 800.
    Columns in `remarks` are left out while none of their values says anything.
    """
    silent = {name for name in remarks if not any(rows.get(name, ()))}
    with st.container(key=f"table_{key}", gap="xxsmall"):
        is_all = not more or st.toggle("All columns", key=f"{key}_all")
        shown = [
            name for name in columns if name in rows and name not in silent and (is_all or name not in more)
        ]
        st.dataframe(
            {name: rows[name] for name in shown},  # columns nobody sees would be sent at each tick
            column_config=columns,
            column_order=shown,
            hide_index=True,
            key=key,
            height=height,
            placeholder="\u2014",
            row_height=WRAPPED_ROW_PX if is_wrapped else None,
        )


def style() -> None:
    """Set the few sizes Streamlit has no setting for, and keep the strip in sight, beside the menu."""
    st.html(
        "<style>.rk-value{font-size:1.7rem;font-weight:650;line-height:1.25;"
        "font-variant-numeric:tabular-nums}"
        ".stMainBlockContainer{padding:0 2rem 3rem!important}"
        ".stAppHeader{background:transparent!important;pointer-events:none;height:3.1rem;min-height:0}"
        ".stAppHeader button,.stAppHeader a{pointer-events:auto}"
        "[data-stale=true]{opacity:.8!important}"  # a tick on a busy machine must not blank the page
        ".st-key-strip [data-stale=true]{opacity:1!important}"
        "[data-testid=stStatusWidget]{display:none}"  # its Stop button ends a change half-way
        f"{STRIP}{{padding:.55rem 2.2rem .35rem 0}}"
        f"@media(min-width:75rem){{{STRIP}{{position:sticky;top:0;z-index:99;"
        f"background:light-dark({LIGHT['backgroundColor']},{DARK['backgroundColor']})}}}}"
        "[data-testid=stBottomBlockContainer]{padding:.6rem 2rem 1rem!important}"
        f".stApp:has([data-testid=stExpandSidebarButton]) {STRIP}{{padding-left:2rem}}"
        # narrow windows: the menu and the edges give their room to tables
        "@media(max-width:64rem){[data-testid=stSidebar][data-collapsed=false]{width:11.5rem!important;"
        "min-width:11.5rem!important}.stMainBlockContainer{padding:0 1rem 3rem!important}}"
        # where three of four cards have room: two and two, none alone
        "@media(max-width:55rem){.stGrid[class*=st-key-cards_4_]{grid-template-columns:1fr 1fr!important}}"
        ".stMarkdownBadge{white-space:normal!important;overflow:visible!important}"  # never cut off
        "h1{font-size:1.35rem!important;padding:0 0 .4rem 0!important}"
        "h3{font-size:1.05rem!important}</style>"
    )


def lines(items: Sequence[str]) -> None:
    """Draw plain sentences as a list."""
    st.markdown("\n".join(f"- {words.with_code(item)}" for item in items))


def verdict(tone: words.Tone, text: str) -> None:
    """Draw a sentence with the box that fits its tone."""
    {"good": st.success, "act": st.error, "watch": st.warning}.get(tone, st.info)(text)


def paragraphs(items: Sequence[str]) -> None:
    """Draw lines of Markdown close to each other."""
    with st.container(gap="xxsmall"):
        for item in items:
            st.markdown(item)


def two() -> tuple[Any, Any]:
    """Return two places side by side, one below the other where there is no room."""
    first, second = places(2, min_px=380)
    return first, second


def places(count: int, *, min_px: int = 280) -> list[Any]:
    """Return places side by side, in as many rows as the width asks for."""
    grid = st.grid(columns=count, min_column_width=min_px)
    return [grid.container() for _ in range(count)]
