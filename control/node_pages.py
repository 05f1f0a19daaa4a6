"""A node of several pages: its engines on ports of their own, and the exporter of its GPUs. Pure.

The engines of a further page are named after its port, so that a name stays when another page fails.
Prevents: two engines of one name, a dead GPU exporter that makes a node silent, and a node that looks
half idle because one of its pages is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from control.rounds import EngineSample, FurtherPage, NodeResult, PageResult, Target
from fleet.gpu_readings import of_host
from fleet.quality_kinds import Finding
from fleet.readings import PageReading, PageState, Reason

#: Flag of samples of a node that has another engine page which gave nothing.
PAGE_LOST = "page_lost"
_NO_GPUS = "the page has no GPU of this node"


def page_key(node: str, url: str) -> str:
    """Return under what a further page is remembered; no node is called so."""
    return f"{node} {url}"


def engine_page(
    own_url: str | None,
    url: str,
    page: PageReading,
    samples: Sequence[EngineSample],
    findings: Sequence[Finding],
) -> PageResult:
    """Return an engine's page as a result; `own_url` is the node's, None where this page is that."""
    suffix = "" if own_url is None else _suffix(own_url, url)
    named = tuple(replace(sample, engine=sample.engine + suffix) for sample in samples)
    found = tuple(replace(f, engine=f.engine + suffix) for f in findings)
    missing = () if page.names is None else page.names.not_exported
    return PageResult(
        url, "engine", page.dialect, None, "", missing, samples=named, gpus=page.gpus, findings=found
    )


def _suffix(own_url: str, url: str) -> str:
    """Return `@port`, or `@host:port` where the host is another than the node's."""
    own, other = urlsplit(own_url), urlsplit(url)
    port = other.port or (443 if other.scheme == "https" else 80)
    return f"@{port}" if own.hostname == other.hostname else f"@{other.netloc}"


def gpu_page(wanted: FurtherPage, page: PageReading) -> PageResult:
    """Return a GPU exporter's page as a result: the GPUs of this node, or why there are none."""
    gpus = of_host(page.gpus, host=wanted.host, uuids=wanted.gpus)
    if gpus:
        return PageResult(wanted.url, "gpu", page.dialect, gpus=gpus)
    if page.state in {PageState.NOT_METRICS, PageState.TOO_LARGE}:
        return PageResult(wanted.url, "gpu", None, Reason(page.state.value), page.hint)
    return PageResult(wanted.url, "gpu", page.dialect, Reason.NO_GPU_SERIES, _NO_GPUS)


def joined(target: Target, own: NodeResult, further: Sequence[PageResult]) -> NodeResult:
    """Return the node of all its pages. It has samples if any engine's page gave some."""
    samples = (*own.samples, *(sample for page in further for sample in page.samples))
    pages = (*own.pages, *further)
    findings = (*own.findings, *(found for page in further for found in page.findings))
    whole = replace(own, samples=samples, pages=pages, findings=findings)
    if not samples:
        return whole
    if whole.lost_pages:
        samples = tuple(
            replace(s, window=replace(s.window, flags=(*s.window.flags, PAGE_LOST))) for s in samples
        )
    return replace(whole, samples=samples, reason=None, detail="")
