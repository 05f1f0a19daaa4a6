"""nginx, HAProxy and Envoy with the files of docs/deploy, in front of gateways of a test.

A file is used as it stands; only addresses, the certificate and where logs go are replaced, and each of
those must be in it. The proxy listens on a Unix socket, with TLS. Times are seconds.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Generator
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from tests import peers
from tests.gateway_process import KEYS, eventually

DEPLOY = Path(__file__).parents[1] / "docs" / "deploy"
GATEWAYS = ("10.0.0.9:8400", "10.0.0.10:8400")


def replaced(name: str, changes: dict[str, str]) -> str:
    """Return a file of docs/deploy with its machine's words replaced by ours."""
    text = (DEPLOY / name).read_text()
    for old, new in changes.items():
        assert text.count(old) == 1, f"{name} has {old!r} {text.count(old)} times"
        text = text.replace(old, new)
    return text


def certificate(
    folder: Path, name: str = "llm.example.org", address: str = "DNS:llm.example.org"
) -> tuple[Path, Path]:
    """Make a certificate for a name; return the paths of certificate and key."""
    key, cert = folder / "tls.key", folder / "tls.crt"
    subprocess.run(
        [
            *["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"],
            *["-subj", f"/CN={name}", "-addext", f"subjectAltName={address}"],
            *["-keyout", str(key), "-out", str(cert)],
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return cert, key


def envoy() -> Path | None:
    """Return an Envoy: of the PATH, or as the benchmarks bring it. None: no package of Debian's has one."""
    found = shutil.which("envoy") or peers.cache_folder() / "envoy" / "envoy" / "_bin" / "envoy"
    return Path(found) if os.access(found, os.X_OK) else None


class DeployedProxy:
    """One proxy with its file of docs/deploy."""

    def __init__(self, name: str, folder: Path, gateway_urls: list[str]) -> None:
        self.name, self.folder = name, folder
        folder.mkdir(parents=True)
        self.socket = folder / "door"
        self.cert, key = certificate(folder)
        where = [urlsplit(url).netloc for url in gateway_urls]
        addresses = dict(zip(GATEWAYS, where, strict=True))
        if name == "nginx":
            self.file = folder / "nginx.conf"
            as_root = "" if os.getuid() else "\nuser root;"  # pages of a test are nobody else's
            places = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
            temporary = "".join(f"    {place}_temp_path {folder}/{place};\n" for place in places)
            changes = {
                "pid /run/nginx.pid;": f"pid {folder}/pid;\ndaemon off;{as_root}",
                "/var/log/nginx/error.log": f"{folder}/error.log",
                "/var/log/nginx/access.log": f"{folder}/access.log",
                "http {\n": "http {\n" + temporary,
                "listen 443 ssl;": f"listen unix:{self.socket} ssl;",
                "/etc/rhodeck/tls.crt": str(self.cert),
                "/etc/rhodeck/tls.key": str(key),
            }
            flags = ["-e", f"{folder}/error.log", "-p", str(folder), "-c", str(self.file)]
            self.checking, self.running_flags = [*flags, "-t"], flags
        elif name == "envoy":
            self.file = folder / "envoy.yaml"
            words = "socket_address: {{address: {}, port_value: {}}}"
            addresses = {
                words.format(*old.split(":")): words.format(*new.split(":"))
                for old, new in addresses.items()
            }
            changes = {
                words.format("0.0.0.0", 443): f"pipe: {{path: {self.socket}}}",
                words.format("127.0.0.1", 9901): words.format("127.0.0.1", 0),
                "/etc/rhodeck/tls.crt": str(self.cert),
                "/etc/rhodeck/tls.key": str(key),
            }
            flags = ["-c", str(self.file), "--log-level", "warning"]
            running = ["--concurrency", "1", "--disable-hot-restart"]
            self.checking, self.running_flags = [*flags, "--mode", "validate"], [*flags, *running]
        else:
            self.file = folder / "haproxy.cfg"
            both = folder / "tls.pem"
            both.write_bytes(self.cert.read_bytes() + key.read_bytes())
            changes = {
                "    maxconn 8192": "    maxconn 200",  # a machine for tests may allow few descriptors
                "bind :443 ssl crt /etc/rhodeck/tls.pem": f"bind unix@{self.socket} ssl crt {both}",
            }
            flags = ["-f", str(self.file)]
            self.checking, self.running_flags = [*flags, "-c"], ["-db", *flags]
        self.file.write_text(replaced(self.file.name, changes | addresses))

    @property
    def program(self) -> str:
        """Return the path of what runs it."""
        return str(envoy() if self.name == "envoy" else peers.program(self.name))

    def check(self) -> subprocess.CompletedProcess[str]:
        """Let the program itself read the file."""
        return subprocess.run(
            [self.program, *self.checking],
            env=peers.environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    @contextlib.contextmanager
    def running(self) -> Generator[DeployedProxy]:
        """Run it until the block ends; wait until a request comes through."""
        command = [self.program, *self.running_flags]
        with (self.folder / "log").open("wb") as log:
            process = subprocess.Popen(
                command, env=peers.environment(), stdout=log, stderr=log, cwd=self.folder
            )
        try:
            eventually(lambda: self._serves(process))
            yield self
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)

    def _serves(self, process: subprocess.Popen[bytes]) -> bool:
        if process.poll() is not None:
            raise AssertionError(f"{self.name} ended: {(self.folder / 'log').read_text()[-2_000:]}")
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(self.socket))
            except OSError:
                return False
        with self.client() as client:
            return client.get("/readyz").status_code == 200

    def connection(self) -> ssl.SSLSocket:
        """Return a connection of its own, for what an HTTP client would not do."""
        context = ssl.create_default_context(cafile=str(self.cert))
        plain = socket.socket(socket.AF_UNIX)
        plain.connect(str(self.socket))
        return context.wrap_socket(plain, server_hostname="llm.example.org")

    def client(self, tenant: str = "acme") -> httpx.Client:
        """Return a client with the tenant's key that knows the certificate."""
        context = ssl.create_default_context(cafile=str(self.cert))
        return httpx.Client(
            transport=httpx.HTTPTransport(uds=str(self.socket), verify=context),
            base_url="https://llm.example.org",
            headers={"Authorization": f"Bearer {KEYS[tenant]}"},
            trust_env=False,
            timeout=60,
        )
