"""A deep link opened while the database is away fills itself when it is back; a chart leaves as a PNG."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from playwright.sync_api import Page, expect, sync_playwright

from control.database import session_scope
from control.embedded_socket import free_tcp_port
from fleet.clock import SystemClock
from tests.browser.find_browser import find
from tests.browser.test_journey import FLAGS, PATIENCE_MS, ROOT, wait_until
from tests.pages.fleet_rows import fill
from tests.postgres_server import FreshDatabase

pytestmark = [pytest.mark.browser, pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(900)]


class Road:
    """A TCP road to Postgres' socket that is closed until it is opened."""

    def __init__(self, target: str) -> None:
        self._target, self.port = target, free_tcp_port()
        self._listener: socket.socket | None = None
        self._threads: list[threading.Thread] = []
        self._open: list[socket.socket] = []

    def open(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._spawn(self._accept, self._listener)

    def close(self) -> None:
        """Close everything; every thread ends."""
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(60)
        for each in self._open:
            each.close()

    def _spawn(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                came, _ = listener.accept()
            except OSError:
                return
            there = socket.socket(socket.AF_UNIX)
            there.connect(self._target)
            self._open += [came, there]
            self._spawn(self._carry, came, there)
            self._spawn(self._carry, there, came)

    @staticmethod
    def _carry(source: socket.socket, sink: socket.socket) -> None:
        try:
            while taken := source.recv(65536):
                sink.sendall(taken)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return


@contextmanager
def dashboard(dsn: str, folder: Path) -> Generator[str]:
    """A dashboard process over `dsn`; its address."""
    port = free_tcp_port()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RHODECK_")}
    with (folder / "dashboard.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "dashboard", "--port", str(port)],
            cwd=ROOT,
            env=environment | {"DATABASE_URL": dsn, "RHODECK_STATE_DIR": str(folder)},
            stdout=log,
            stderr=log,
        )
        try:
            url = f"http://127.0.0.1:{port}"

            def answers() -> bool:
                try:
                    return httpx.get(f"{url}/_stcore/health", timeout=5).status_code == 200
                except httpx.HTTPError:
                    return process.poll() is not None

            wait_until(answers, 200)
            assert process.poll() is None, (folder / "dashboard.log").read_text()[-3_000:]
            yield url
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(30)


@contextmanager
def chromium() -> Generator[Page]:
    path = find(install=False)
    assert path is not None, "no Chromium: run `make browser`"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            page = browser.new_page(viewport={"width": 1440, "height": 1200}, accept_downloads=True)
            page.set_default_timeout(PATIENCE_MS)
            yield page
        finally:
            browser.close()


def test_a_link_opened_while_the_database_is_away_fills_itself_and_its_chart_leaves_as_a_png(
    database: FreshDatabase, tmp_path: Path
) -> None:
    with session_scope(database.engine) as session:
        fill(session, SystemClock().now())
    parts = urlsplit(database.dsn)
    folder = parse_qs(parts.query)["host"][0]
    road = Road(f"{folder}/.s.PGSQL.5432")
    dsn = f"postgresql://{parts.username}@127.0.0.1:{road.port}{parts.path}"
    try:
        with dashboard(dsn, tmp_path) as url, chromium() as page:
            page.goto(f"{url}/node?node=n2")
            expect(page.get_by_text("Nothing can be shown until it answers").first).to_be_visible(
                timeout=PATIENCE_MS
            )
            road.open()
            # nobody reloads: the page asked for, of the node asked for
            expect(page.get_by_text("Nothing can be shown until it answers")).to_have_count(
                0, timeout=PATIENCE_MS
            )
            expect(page).to_have_url(re.compile("node=n2"), timeout=PATIENCE_MS)
            page.locator(".js-plotly-plot").first.wait_for(timeout=PATIENCE_MS)
            plot = page.locator(".js-plotly-plot").first
            plot.hover()
            with page.expect_download(timeout=PATIENCE_MS) as coming:
                plot.locator('[data-title*="png" i], [data-title*="image" i]').first.click(force=True)
            saved = tmp_path / "chart.png"
            coming.value.save_as(saved)
            assert saved.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    finally:
        road.close()
