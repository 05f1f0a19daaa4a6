"""What each kind of discovery source must be told: checked where it is typed, and again where it is used.

Times are seconds. Secrets are never settings: a setting names the file that holds one, read anew at each
use. Prevents: a token in a database backup, and a source whose mistake shows only at its first look.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from control.fetch import FetchFailed, split_url
from fleet.errors import InvalidInput
from fleet.promql import parsed_matchers

_DNS_NAME = re.compile(r"(?=.{1,253}\.?$)(?:[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.?)+")
_SERVER = re.compile(r"(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|\[[0-9A-Fa-f:]{2,39}\])(?::[0-9]{1,5})?")
_KUBERNETES_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,61}[a-z0-9])?")


def _file(text: str) -> str:
    path = PurePosixPath(text)
    if not path.is_absolute() or ".." in path.parts or not text.isprintable():
        raise ValueError("must be an absolute path without ..")
    return text


def _url(text: str) -> str:
    try:
        split_url(text, default_path="/")
    except FetchFailed as problem:
        raise ValueError(problem.message) from problem
    return text


def _matchers(text: str) -> str:
    try:
        return ",".join(parsed_matchers(text))
    except InvalidInput as problem:
        raise ValueError(problem.message) from problem


def _matching(pattern: re.Pattern[str], what: str) -> AfterValidator:
    def check(text: str) -> str:
        if not pattern.fullmatch(text):
            raise ValueError(f"is not {what}")
        return text

    return AfterValidator(check)


FilePath = Annotated[str, Field(max_length=1_000), AfterValidator(_file)]
Url = Annotated[str, Field(max_length=500), AfterValidator(_url)]


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileSettings(_Settings):
    """A file on the controller's machine: one address a line, or Prometheus's file_sd JSON."""

    path: FilePath


class HttpSettings(_Settings):
    """An address that answers in Prometheus's http_sd format."""

    url: Url
    token_file: FilePath | None = None
    ca_file: FilePath | None = None


class DnsSettings(_Settings):
    """An SRV name such as `_vllm._tcp.example.org`; `server` in place of the system's resolvers."""

    service: Annotated[str, _matching(_DNS_NAME, "a DNS name")]
    server: Annotated[str, _matching(_SERVER, "ADDRESS or ADDRESS:PORT")] | None = None


class KubernetesSettings(_Settings):
    """EndpointSlices of one namespace, by the API server's HTTP API. Defaults are those inside a pod."""

    namespace: Annotated[str, _matching(_KUBERNETES_NAME, "a namespace")]
    selector: Annotated[str, Field(max_length=500, pattern=r"^[A-Za-z0-9 _./=!,()-]+$")]
    port: Annotated[str, Field(max_length=63, pattern=r"^[a-z0-9-]+$")] | None = None  # name or number
    api_url: Url = "https://kubernetes.default.svc"
    token_file: FilePath | None = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105 # a path
    ca_file: FilePath | None = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"


class PrometheusSettings(_Settings):
    """The active targets of a Prometheus-compatible server. `read_from`: where to read new nodes."""

    url: Url  # what comes before /api/v1
    match: Annotated[str, Field(max_length=1_000), AfterValidator(_matchers)] = ""
    token_file: FilePath | None = None
    basic_file: FilePath | None = None
    ca_file: FilePath | None = None
    read_from: Annotated[str, Field(max_length=63)] | None = None  # a source of `rhodeck prom`
    instance_label: Annotated[str, Field(max_length=100, pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")] = "instance"


AnySettings = FileSettings | HttpSettings | DnsSettings | KubernetesSettings | PrometheusSettings
Kind = Literal["file", "http_sd", "dns_srv", "kubernetes", "prometheus"]
MODELS: dict[str, type[AnySettings]] = {
    "file": FileSettings,
    "http_sd": HttpSettings,
    "dns_srv": DnsSettings,
    "kubernetes": KubernetesSettings,
    "prometheus": PrometheusSettings,
}


def checked_settings(kind: str, settings: dict[str, Any]) -> AnySettings:
    """Return the settings of a source. Raises InvalidInput naming the first that is wrong."""
    model = MODELS.get(kind)
    if model is None:
        raise InvalidInput(
            f"there is no discovery kind {kind[:40]!r}",
            hint=f"Write one of {', '.join(MODELS)}",
            field="kind",
        )
    try:
        return model.model_validate(settings)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "settings"
        raise InvalidInput(
            f"{where} of a {kind} source: {first['msg'].removeprefix('Value error, ')}",
            hint=f"It takes {', '.join(model.model_fields)}",
            field=where,
        ) from exc
