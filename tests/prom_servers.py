"""Real Prometheus, VictoriaMetrics and Alertmanager servers, each with a free port and a folder of its own.

Owns their processes: they end with the block, whatever happens in it. Prevents: a fixed port two workers
fight for, and a test against a fake that agrees with us. Times are seconds.
"""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests import peers

READY_S = 120


@dataclass(frozen=True)
class PromServer:
    """A running server. `url` is what comes before /api/v1."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def stop(self) -> None:
        """End it now, as a crash would: connections are refused afterwards."""
        self.process.kill()
        self.process.wait(60)


def scrape_config(jobs: Sequence[dict[str, Any]], *, interval: str = "1s") -> str:
    """Return a configuration (JSON is YAML) that scrapes `jobs` each `interval`."""
    config = {
        "global": {"scrape_interval": interval, "scrape_timeout": interval},
        "scrape_configs": list(jobs),
    }
    return json.dumps(config)


def static_job(name: str, targets: Sequence[str], **more: Any) -> dict[str, Any]:
    """Return a job that scrapes `targets` (host:port)."""
    return {"job_name": name, "static_configs": [{"targets": list(targets)}], **more}


@contextmanager
def prometheus(folder: Path, config: str, *arguments: str, scheme: str = "http") -> Generator[PromServer]:
    """Run Debian's Prometheus with `config`."""
    (folder / "prometheus.yml").write_text(config)
    flags = [
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'prometheus-data'}",
        "--web.listen-address=127.0.0.1:0",
        *arguments,
    ]
    with _running("prometheus", folder, flags, ready="/-/ready", scheme=scheme) as server:
        yield server


@contextmanager
def victoria_metrics(folder: Path, config: str | None, *arguments: str) -> Generator[PromServer]:
    """Run Debian's VictoriaMetrics, scraping by `config` if given."""
    flags = ["-httpListenAddr=127.0.0.1:0", f"-storageDataPath={folder / 'victoria-data'}", *arguments]
    if config is not None:
        (folder / "victoria.yml").write_text(config)
        flags.append(f"-promscrape.config={folder / 'victoria.yml'}")
    with _running("victoria-metrics", folder, flags, ready="/health") as server:
        yield server


@contextmanager
def alertmanager(folder: Path) -> Generator[PromServer]:
    """Run Debian's Alertmanager alone, with one receiver that does nothing."""
    (folder / "alertmanager.yml").write_text('{"route": {"receiver": "x"}, "receivers": [{"name": "x"}]}')
    flags = [
        f"--config.file={folder / 'alertmanager.yml'}",
        f"--storage.path={folder / 'alertmanager-data'}",
        "--web.listen-address=127.0.0.1:0",
        "--cluster.listen-address=",
    ]
    program = _own_alertmanager(folder)
    with _running("prometheus-alertmanager", folder, flags, ready="/-/ready", program=program) as server:
        yield server


#: Where Debian's build reads its templates from, whatever its configuration says.
_TEMPLATES = b"/usr/share/prometheus/alertmanager"


def _own_alertmanager(folder: Path) -> Path:
    """Return the program; one that is not installed gets its templates' folder beside it instead."""
    found = peers.program("prometheus-alertmanager")
    if Path(_TEMPLATES.decode()).is_dir():
        return found
    beside = "./" + "t" * (len(_TEMPLATES) - 2)
    (folder / beside).mkdir()
    for template in (found.parents[1] / "share/prometheus/alertmanager").glob("*.tmpl"):
        (folder / beside / template.name).write_bytes(template.read_bytes())
    own = folder / found.name
    own.write_bytes(found.read_bytes().replace(_TEMPLATES, beside.encode()))
    own.chmod(0o700)
    return own


@contextmanager
def _running(
    name: str,
    folder: Path,
    flags: Sequence[str],
    *,
    ready: str,
    scheme: str = "http",
    program: Path | None = None,
) -> Generator[PromServer]:
    log = folder / f"{name}.log"
    environment = {**peers.environment(), "GOMAXPROCS": "2"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(program or peers.program(name)), *flags],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=output,
        )
    try:
        url = _wait(process, log, ready, scheme)
        yield PromServer(url, process, log)
    finally:
        process.kill()
        process.wait(60)


def _wait(process: subprocess.Popen[bytes], log: Path, ready: str, scheme: str) -> str:
    """Return the address once the server listens and says that it is ready."""
    pause = threading.Event()
    for _ in range(READY_S * 20):
        if process.poll() is not None:
            break
        for port in _listening(process.pid):
            url = f"{scheme}://127.0.0.1:{port}"
            if _answers(url + ready):
                return url
        pause.wait(0.05)
    raise AssertionError(f"{process.args} did not get ready: {log.read_text(errors='replace')[-2000:]}")


def _listening(pid: int) -> list[int]:
    try:
        connections = psutil.Process(pid).net_connections(kind="tcp")
    except psutil.Error:
        return []
    return [c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN]


def _answers(url: str) -> bool:
    """True once the server is ready, or asks who we are."""
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(url, timeout=5, context=trusting) as answer:
            return answer.status == 200
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code == 401
    except (urllib.error.URLError, OSError):
        return False
