"""What an operator may set on a gateway, checked before anything starts.

Times are seconds, sizes bytes. Every field is a flag (see `__main__`) and a RHODECK_GATEWAY_* variable;
secrets are files or variables, never flags. Prevents: a gateway whose admin API is open to the network,
and limits that are only in the source.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, StringConstraints, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from admission.quota_wire import address_of
from fleet.errors import InvalidInput

ENV_PREFIX = "RHODECK_GATEWAY_"
MIN_TOKEN_CHARACTERS = 16
MAX_STATE_AGE_S = 2.0
MAX_PORT = 65_535

_Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_.-]{0,62}$")]
_Seconds = Annotated[float, Field(ge=0.05, le=86_400, allow_inf_nan=False)]
_Bytes = Annotated[int, Field(ge=1_024, le=1 << 40)]
_Count = Annotated[int, Field(ge=1, le=1_000_000)]


class Settings(BaseSettings):
    """One gateway process."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_ignore_empty=True, frozen=True, use_attribute_docstrings=True
    )

    name: _Name
    """Name of this gateway, as the control plane knows it."""
    state_dir: Path
    """Folder of the last good assignment and the usage spool."""
    host: str = "127.0.0.1"
    """Address to listen on. Other than loopback only with an admin token."""
    port: Annotated[int, Field(ge=0, le=65_535)] = 8400
    """Port to listen on; 0 picks a free one and logs it."""
    processes: Annotated[int, Field(ge=1, le=64)] = 1
    """Processes on that port, each a gateway of its own to the control plane: NAME-1, NAME-2 and so on."""
    hang_s: Annotated[float, Field(ge=1, le=600, allow_inf_nan=False)] = 10.0
    """Silence after which one of several processes is killed and started anew. A neighbour accepts for it
    after a third of that."""
    admin_port: Annotated[int, Field(ge=0, le=65_535)] | None = None
    """Port of /admin and /metrics alone, 0 for a free one. With several processes the first one's; the next
    ones follow. Unset: with several processes the port after --port, else --port itself."""
    admin_host: str | None = None
    """Address of the admin port; that of --host where unset."""
    admin_token: SecretStr | None = None
    """Token that /admin asks for, 16 characters or more. A variable or a file, not a flag."""
    admin_token_file: Path | None = None
    """File with the admin token."""
    node_api_key: SecretStr | None = None
    """Key sent to the nodes (vLLM's --api-key). A variable or a file, not a flag."""
    node_api_key_file: Path | None = None
    """File with the key sent to the nodes."""
    log_level: Annotated[str, StringConstraints(pattern=r"^(DEBUG|INFO|WARNING|ERROR)$")] = "INFO"
    """Least severe log lines to write: DEBUG, INFO, WARNING or ERROR."""
    body_bytes: _Bytes = 8 << 20
    """Largest request body."""
    bodies_bytes: _Bytes = 256 << 20
    """Most bytes of request bodies held at once; what comes on top gets 503. Memory is a few times that."""
    answer_bytes: _Bytes = 32 << 20
    """Largest answer that is not streamed."""
    drain_s: Annotated[float, Field(ge=0, le=3_600, allow_inf_nan=False)] = 30.0
    """Time that running requests get after SIGTERM."""
    poll_interval_s: _Seconds = 0.5
    """Time between two looks at a node's metrics; longer above 250 nodes."""
    poll_timeout_s: _Seconds = 1.0
    """Deadline of one look. Together with the interval at most 2 s."""
    connect_timeout_s: _Seconds = 2.0
    """Deadline of a connection to a node."""
    first_byte_timeout_s: _Seconds = 300.0
    """Time a node has to begin its answer."""
    idle_timeout_s: _Seconds = 120.0
    """Longest silence inside a node's answer."""
    total_timeout_s: _Seconds = 1_800.0
    """Longest time an answer may take, and so hold its lease."""
    retries: Annotated[int, Field(ge=0, le=10)] = 2
    """Times a request may go to another node before its first byte."""
    spool_bytes: _Bytes = 512 << 20
    """Bound of the usage spool; records beyond it are lost, counted and logged as errors."""
    decisions: Annotated[int, Field(ge=0, le=100_000)] = 2_000
    """Requests whose decisions are kept in memory for `rhodeck gateway explain`, about 2 KB each."""
    header_bytes: _Bytes = 16_384
    """Largest request head."""
    header_count: _Count = 100
    """Most headers of a request."""
    header_deadline_s: _Seconds = 10.0
    """Time a client has for a request head, from connecting or from its first byte."""
    body_idle_s: _Seconds = 10.0
    """Longest silence inside a request body."""
    body_deadline_s: _Seconds = 60.0
    """Time a client has for a request body."""
    keep_alive_s: Annotated[int, Field(ge=1, le=3_600)] = 30
    """Time an idle client connection is kept."""
    write_deadline_s: _Seconds = 30.0
    """Time a client may leave an answer unread."""
    connections: _Count = 4_096
    """Most client connections."""
    connections_per_address: _Count = 2_048
    """Most connections of one client address."""
    quota_store_url: SecretStr | None = None
    """Redis or Valkey that counts exact quotas (rediss:// for TLS). A variable or a file, not a flag."""
    quota_store_url_file: Path | None = None
    """File with the quota store's URL."""
    quota_store_budget_s: _Seconds = 0.05
    """Longest time a request waits for the quota store; then leases decide."""
    quota_store_prefix: _Name = "rhodeck"
    """What the store's keys begin with: the same at all gateways of a fleet, another for each fleet."""
    tokenizers_dir: Path | None = None
    """Folder of <model>/tokenizer.json files: prompts of these models are counted, not estimated."""
    tokenize_by_engine: bool = False
    """Count prompts by the engines' own /tokenize; one more call to a node for each new prompt."""
    tokenizer_budget_s: Annotated[float, Field(ge=0.001, le=10, allow_inf_nan=False)] = 0.02
    """Longest time a request waits for its prompt to be counted; then the estimate holds."""
    otlp_endpoint: str | None = None
    """Base address of an OpenTelemetry collector that takes spans by OTLP/HTTP (http://collector:4318)."""
    otlp_ratio: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 1.0
    """Part of the traces begun here that is kept, 0 to 1; a client's own trace says itself if it is."""


#: Settings that come from files and variables only.
SECRETS = ("admin_token", "node_api_key", "quota_store_url")


def load(given: dict[str, Any]) -> Settings:
    """Return the settings from `given` and the environment. Raises InvalidInput naming the flag."""
    values = dict(given)
    for secret in SECRETS:
        path = values.get(f"{secret}_file")
        if path:
            values[secret] = read_secret(Path(path), _flag(f"{secret}_file"))
    try:
        settings = Settings(**values)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
        name = str(first["loc"][0])
        hint = Settings.model_fields[name].description or ""
        raise InvalidInput(first["msg"], field=_flag(name), hint=hint) from exc
    _check(settings)
    return settings


def _check(settings: Settings) -> None:
    """Raise InvalidInput for settings that do not go together."""
    token = settings.admin_token
    if token is not None and len(token.get_secret_value()) < MIN_TOKEN_CHARACTERS:
        raise InvalidInput(
            f"the admin token is too short; {MIN_TOKEN_CHARACTERS} characters or more are asked",
            field="--admin-token-file",
            hint="For example: openssl rand -hex 32",
        )
    for flag, host in (("--host", settings.host), ("--admin-host", settings.admin_host)):
        if token is None and host is not None and not is_loopback(host):
            raise InvalidInput(
                f"{host} can be reached from other machines and there is no admin token",
                field=flag,
                hint="Give --admin-token-file, or listen on 127.0.0.1",
            )
    _check_ports(settings)
    if settings.tokenizers_dir is not None and settings.tokenize_by_engine:
        raise InvalidInput(
            "prompts are counted by files or by the engines, not both",
            field="--tokenize-by-engine",
            hint="Give one of --tokenizers-dir and --tokenize-by-engine",
        )
    if settings.otlp_endpoint is not None:
        _check_endpoint(settings.otlp_endpoint)
    if settings.quota_store_url is not None:
        address_of(settings.quota_store_url.get_secret_value())
    if settings.poll_interval_s + settings.poll_timeout_s > MAX_STATE_AGE_S:
        raise InvalidInput(
            f"polling each {settings.poll_interval_s:g} s with a deadline of {settings.poll_timeout_s:g} s "
            f"lets node states grow older than {MAX_STATE_AGE_S:g} s",
            field="--poll-interval-s",
            hint=f"Keep their sum at or below {MAX_STATE_AGE_S:g}",
        )


def _check_ports(settings: Settings) -> None:
    """Raise InvalidInput for admin ports that are the public one, or an admin address without a port."""
    if settings.admin_host is not None and settings.admin_port is None and settings.processes == 1:
        raise InvalidInput(
            "there is an address for the admin port and no port", field="--admin-port", hint="Give one"
        )
    first = settings.admin_port
    if first and first <= settings.port < first + settings.processes:
        raise InvalidInput(
            f"port {settings.port} cannot serve clients and the admin API of one process",
            field="--admin-port",
            hint=f"Give ports other than --port, for example {settings.port + 1}",
        )
    if first and first + settings.processes - 1 > MAX_PORT:
        raise InvalidInput(
            f"{settings.processes} admin ports from {first} on end above {MAX_PORT}", field="--admin-port"
        )


def _check_endpoint(url: str) -> None:
    """Raise InvalidInput for what is no base address of a collector."""
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address or any(sign in url for sign in "@?#") or not url.isascii() or not url.isprintable():
        raise InvalidInput(
            "this is no address of a collector",
            field="--otlp-endpoint",
            hint="For example http://collector:4318; keys go into OTEL_EXPORTER_OTLP_HEADERS",
        )


def is_loopback(host: str) -> bool:
    """Say whether only this machine can reach a listener on `host` (a name counts as not)."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def read_secret(path: Path, field: str) -> str:
    """Return the secret in a file, without blanks around. Raises InvalidInput, never with its content."""
    try:
        secret = path.read_text(encoding="ascii").strip()
    except OSError as exc:
        raise InvalidInput(f"{path} cannot be read: {exc.strerror}", field=field) from exc
    except UnicodeDecodeError as exc:
        raise InvalidInput(f"{path} is not plain ASCII text", field=field) from exc
    if not secret or any(character.isspace() for character in secret):
        raise InvalidInput(f"{path} must hold one token on one line", field=field)
    return secret


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
