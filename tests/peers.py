"""Finds the programs our work is measured against and tested with: Prometheus, VictoriaMetrics, nginx, ...

Order: the PATH, this user's cache, Debian's archive (`apt-get download` and `dpkg-deb -x` into the cache:
nothing is installed, no root is needed). Prevents: a comparison that is silently skipped because its peer
is missing, and two workers that unpack into each other. Sizes are megabytes, times seconds.

    program("prometheus")            # Path of something that can be run
    environment()                    # os.environ plus the libraries that came with the programs
    python tests/peers.py [NAME...]  # fetch the named ones, or those the tests use, and print their paths
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

#: Variable that names another cache folder, for a machine that keeps one between runs.
CACHE_VARIABLE = "RHODECK_TEST_CACHE"
_UPDATE_S = 180
_DOWNLOAD_S = 240
#: Where a program lies in a package.
_BIN_FOLDERS = ("usr/bin", "usr/sbin")


@dataclass(frozen=True, slots=True)
class Peer:
    """A program and the Debian packages that hold it (libraries a small system lacks included)."""

    binary: str
    packages: tuple[str, ...]


PEERS = {
    "prometheus": Peer("prometheus", ("prometheus",)),
    "promtool": Peer("promtool", ("prometheus",)),
    "victoria-metrics": Peer("victoria-metrics", ("victoria-metrics", "libzstd1")),
    "vmagent": Peer("vmagent", ("victoria-metrics", "libzstd1")),
    "prometheus-alertmanager": Peer("prometheus-alertmanager", ("prometheus-alertmanager",)),
    "nginx": Peer("nginx", ("nginx", "libpcre2-8-0", "libssl3")),
    "haproxy": Peer(
        "haproxy",
        (
            "haproxy",
            "liblua5.3-0",
            "libopentracing-c-wrapper0",
            "libopentracing1",
            "libpcre2-8-0",
            "libssl3",
            "libsystemd0",
        ),
    ),
}
#: What `make peers` fetches before the tests: the ones they use.
USED_BY_TESTS = ("prometheus", "victoria-metrics", "prometheus-alertmanager", "nginx", "haproxy")


class PeerMissing(AssertionError):
    """A program a test needs is not here and could not be brought. The test fails: it is not skipped."""


def cache_folder() -> Path:
    """Return the folder fetched programs are kept in; it need not exist."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "rhodeck-tests"


def program(name: str) -> Path:
    """Return the path of the peer `name`, fetched if need be. Safe in parallel workers.

    Raises PeerMissing with what to install.
    """
    peer = PEERS[name]
    found = shutil.which(peer.binary) or _cached(peer)
    if found is not None:
        return Path(found)
    with _locked():
        found = _cached(peer)  # another worker may have been faster
        if found is None:
            for package in peer.packages:
                _unpack(package)
            found = _cached(peer)
    if found is None:
        raise PeerMissing(f"the package {peer.packages[0]} holds no program {peer.binary}")
    return Path(found)


def environment() -> dict[str, str]:
    """Return the environment for a fetched program: its libraries are found after the system's own."""
    root = cache_folder() / "root"
    folders = [*root.glob("usr/lib/*-linux-gnu*"), *root.glob("lib/*-linux-gnu*")]
    known = [part for part in os.environ.get("LD_LIBRARY_PATH", "").split(":") if part]
    if not folders:
        return dict(os.environ)
    return {**os.environ, "LD_LIBRARY_PATH": ":".join([*known, *map(str, sorted(folders))])}


def _cached(peer: Peer) -> Path | None:
    for folder in _BIN_FOLDERS:
        path = cache_folder() / "root" / folder / peer.binary
        if os.access(path, os.X_OK):
            return path
    return None


@contextmanager
def _locked() -> Generator[None]:
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _unpack(package: str) -> None:
    """Fetch one package and unpack it aside, then into the common root: a killed run leaves no half."""
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise PeerMissing(_advice(package, f"{tool} is not here, so it cannot be fetched"))
    aside = cache_folder() / "aside"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    deb = _download(package, aside)
    tree = aside / "tree"
    done = _run(["dpkg-deb", "-x", str(deb), str(tree)], aside, _DOWNLOAD_S)
    if done.returncode != 0:
        raise PeerMissing(_advice(package, f"unpacking it failed: {done.stdout.strip()[-500:]}"))
    _merge(tree, cache_folder() / "root")
    shutil.rmtree(aside)


def _merge(tree: Path, root: Path) -> None:
    """Move a package's files under the root; programs last, so that one in place has its libraries."""
    files = [path for path in tree.rglob("*") if path.is_symlink() or path.is_file()]
    files.sort(key=lambda path: path.parent.name in ("bin", "sbin"))
    for path in files:
        goal = root / path.relative_to(tree)
        goal.parent.mkdir(parents=True, exist_ok=True)
        path.replace(goal)


def _download(package: str, folder: Path) -> Path:
    """Download with the system's package lists, or with lists of our own where it has none or old ones."""
    problem = "apt-get printed nothing"
    for options in ([], _own_lists()):
        if options:
            done = _run(["apt-get", *options, "update"], folder, _UPDATE_S)
            problem = done.stdout.strip()[-500:] or problem
        done = _run(["apt-get", *options, "download", package], folder, _DOWNLOAD_S)
        found = sorted(folder.glob(f"{package}_*.deb"))
        if done.returncode == 0 and found:
            return found[-1]
        problem = done.stdout.strip()[-500:] or problem
    raise PeerMissing(_advice(package, f"apt-get download failed: {problem}"))


def _own_lists() -> list[str]:
    """Return apt options for lists of our own: any user may update them, nobody holds their lock."""
    state, cache = cache_folder() / "apt" / "state", cache_folder() / "apt" / "cache"
    for part in (state / "lists" / "partial", cache / "archives" / "partial"):
        part.mkdir(parents=True, exist_ok=True)
    return [
        "-oDir::State::status=/var/lib/dpkg/status",
        f"-oDir::State::lists={state / 'lists'}",
        f"-oDir::Cache={cache}",
        "-oAPT::Sandbox::User=root",
    ]


def _run(command: list[str], folder: Path, timeout_s: float) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    try:
        return subprocess.run(
            command,
            cwd=folder,
            env=environment,
            timeout=timeout_s,
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, f"{command[0]} took more than {timeout_s:.0f} s")


def _advice(package: str, problem: str) -> str:
    return (
        f"{package} is not on the PATH; {problem}\n"
        f"Install it (Debian, Ubuntu: apt-get install {package}) or put it on the PATH.\n"
        f"Fetched programs are kept in {cache_folder()} (${CACHE_VARIABLE} names another folder)."
    )


def main(names: Iterable[str]) -> int:
    """Fetch `names` and print their paths. Returns the exit code."""
    for name in names:
        if name not in PEERS:
            print(f"no such peer: {name}. Known: {', '.join(PEERS)}", file=sys.stderr)
            return 2
        try:
            print(program(name))
        except PeerMissing as problem:
            print(problem, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or USED_BY_TESTS))
