"""The proxies measured beside our gateway, each started in front of one engine on a free port.

nginx and HAProxy come as `tests.peers` brings them, vllm-router and sglang-router as wheels, unpacked into
the same cache. Prevents: a peer measured with logging on, with no connections kept to the engine, or with
more threads than the one core it is given.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from tests import peers

ROUTERS = ("vllm-router==0.1.17", "sglang-router==0.3.2")
#: What the routers' Python sides import.
_BESIDE = ("setproctitle", "fastapi", "requests", "uvicorn", "aiohttp", "orjson")
_STARTUP_S = 60.0

_NGINX = """daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log crit;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder}; keepalive_requests 1000000;
  upstream engine {{ server {engine}; keepalive 256; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""
_HAPROXY = """global
  nbthread 1
  maxconn 8192
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  option http-no-delay
frontend door
  bind 127.0.0.1:{port}
  default_backend engine
backend engine
  http-reuse always
  server one {engine}
"""


@dataclass(frozen=True, slots=True)
class Running:
    """A proxy in front of the engine. `pid`: its first process; `key`: what the load authenticates with."""

    name: str
    url: str
    pid: int
    key: str = "none"


def free_port() -> int:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port: int = place.getsockname()[1]
        return port


def router_packages() -> Path:
    """Return the folder with the routers' wheels unpacked, fetched if need be."""
    folder = peers.cache_folder() / "routers"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "ready").exists():
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*command, "--target", str(folder), *ROUTERS, *_BESIDE], check=True)
            (folder / "ready").touch()
    return folder


def command(name: str, engine_url: str, port: int, folder: Path) -> tuple[list[str], dict[str, str]]:
    """Return the command line and environment of a peer."""
    engine = urlsplit(engine_url).netloc
    if name == "nginx":
        settings = folder / "nginx.conf"
        settings.write_text(_NGINX.format(folder=folder, engine=engine, port=port))
        return [str(peers.program(name)), "-p", str(folder), "-c", str(settings)], peers.environment()
    if name == "haproxy":
        settings = folder / "haproxy.cfg"
        settings.write_text(_HAPROXY.format(engine=engine, port=port))
        return [str(peers.program(name)), "-q", "-db", "-f", str(settings)], peers.environment()
    module = name.replace("-", "_") + ".launch_router"
    line = [sys.executable, "-m", module, "--host", "127.0.0.1", "--port", str(port)]
    line += ["--worker-urls", engine_url, "--policy", "round_robin", "--prometheus-port", str(free_port())]
    line += ["--log-level", "error", "--max-concurrent-requests", "100000"]
    threads = {"TOKIO_WORKER_THREADS": "1", "RAYON_NUM_THREADS": "1"}
    return line, dict(os.environ) | {"PYTHONPATH": str(router_packages())} | threads


@contextlib.contextmanager
def peer(name: str, engine_url: str, folder: Path, prefix: list[str]) -> Generator[Running]:
    """Run a peer until the block ends. `prefix` is put before its command, as `taskset` is."""
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    line, environment = command(name, engine_url, port, folder)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(prefix + line, env=environment, stdout=log, stderr=log, cwd=folder)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_until_it_answers(url, process, folder / "log")
        yield Running(name, url, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def _wait_until_it_answers(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + _STARTUP_S
    body = {"model": "m-70b", "messages": [{"role": "user", "content": "ready?"}], "max_tokens": 1}
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        with contextlib.suppress(httpx.HTTPError):
            if httpx.post(f"{url}/v1/chat/completions", json=body, trust_env=False).status_code == 200:
                return
        time.sleep(0.1)
    raise SystemExit(f"the peer at {url} does not answer: {log.read_text(errors='replace')[-2000:]}")
