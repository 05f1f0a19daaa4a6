"""Every setting of the control plane and the dashboard, from environment variables.

Read once, at entry points, and passed on as values. Durations are seconds (`_s`), days are days.
Prevents: settings read in the middle of a function, a secret printed with its model, a page open to
the network because nobody configured sign-in, and a typo in a number found only at the first tick.
"""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self
from zoneinfo import ZoneInfo

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, SettingsConfigDict

from control.database import parse_dsn
from fleet.errors import InvalidInput

PREFIX = "RHODECK_"
ROOT_STATE_DIR = Path("/var/lib/rhodeck")
_ADMIN_TOKEN_MIN_CHARACTERS = 16
_FINANCE_NAME = r"^[A-Za-z0-9][A-Za-z0-9 ._&()/-]{0,99}$"
_HOST_NAME = re.compile(r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9-]+)*")


class SignIn(StrEnum):
    """How people prove who they are to the dashboard."""

    NONE = "none"  # whoever reaches the page is admin: loopback only
    LOCAL = "local"  # accounts of our own, with password


def default_state_dir() -> Path:
    """Return where the embedded database lives unless told: root's in /var/lib, a user's by XDG."""
    if os.geteuid() == 0:
        return ROOT_STATE_DIR
    base = os.environ.get("XDG_STATE_HOME", "")
    try:
        return (Path(base) if base.startswith("/") else Path.home() / ".local" / "state") / "rhodeck"
    except RuntimeError:
        raise InvalidInput(
            "there is no home folder to keep state in",
            hint="Set RHODECK_STATE_DIR",
            field="RHODECK_STATE_DIR",
        ) from None


class Settings(BaseSettings):
    """What an operator can set. Each is the upper-case name with the prefix RHODECK_."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, frozen=True, extra="ignore", hide_input_in_errors=True
    )

    database_url: SecretStr | None = Field(
        default=None,
        validation_alias="DATABASE_URL",
        description="Postgres to use, as postgresql://user:password@host:5432/database. "
        "Without it, an embedded server runs in the state folder (single machine).",
    )
    state_dir: Path = Field(
        default_factory=default_state_dir,
        description="Folder of the embedded database. As root its parents must be passable for others.",
    )
    pg_user: str | None = Field(
        default=None,
        description="Account the embedded database runs under when started by root "
        "(default: the owner of its data, else rhodeck, postgres or nobody, whichever exists).",
    )
    admin_token: SecretStr | None = Field(
        default=None,
        min_length=_ADMIN_TOKEN_MIN_CHARACTERS,
        description="Token the controller presents to gateways. Prefer the file.",
    )
    admin_token_file: Path | None = Field(
        default=None, description="File that holds the token the controller presents to gateways."
    )
    api_host: str = Field(default="127.0.0.1", description="Address the HTTP API listens on.")
    api_port: int = Field(
        default=8700, ge=0, le=65535, description="Port of the HTTP API; 0 picks a free one."
    )
    control_host: str = Field(
        default="127.0.0.1",
        description="Address of the controller's own /metrics and /healthz: no sign-in, no secrets.",
    )
    control_port: int = Field(
        default=8710, ge=0, le=65535, description="Port of the same; 0 picks a free one."
    )
    dashboard_host: str = Field(
        default="127.0.0.1",
        description="Address the dashboard listens on. Other than loopback only with sign-in configured.",
    )
    dashboard_port: int = Field(
        default=8501, ge=0, le=65535, description="Port of the dashboard; 0 picks a free one."
    )
    sign_in: SignIn = Field(
        default=SignIn.NONE,
        description="How people sign in: none (loopback only, everybody is admin) or local (our accounts).",
    )
    scrape_period_s: float = Field(
        default=10.0, ge=1, le=300, description="Seconds from one round of metrics reading to the next."
    )
    scrape_timeout_s: float | None = Field(
        default=None,
        gt=0,
        le=299,
        description="Seconds one node may take to hand over its metrics page, below the period "
        "(default: 5, or 80 % of a period shorter than 6.25 s).",
    )
    push_timeout_s: float = Field(
        default=5.0,
        gt=0,
        le=60,
        description="Seconds a gateway may take to answer a push or a status read.",
    )
    lease_ttl_s: float = Field(
        default=15.0,
        ge=2,
        le=300,
        description="Seconds after which a standby controller may take over from a silent leader.",
    )
    buffer_mb: int = Field(
        default=256,
        ge=8,
        le=65_536,
        description="MiB of rounds that may wait in memory while Postgres is away; then the oldest go.",
    )
    retention_days: int = Field(
        default=2,
        ge=2,
        le=3650,
        description="Days every single round is kept. Afterwards its minute and its hour speak for it.",
    )
    retention_minute_days: int = Field(
        default=14, ge=2, le=3650, description="Days rollups by the minute are kept."
    )
    retention_hour_days: int = Field(
        default=400, ge=31, le=36_500, description="Days rollups by the hour are kept."
    )
    public_url: str | None = Field(
        default=None,
        max_length=300,
        pattern=r"^https?://[A-Za-z0-9.:_\[\]-]+(/[A-Za-z0-9._~/-]*)?$",
        description="Address people open the dashboard at, for links in notices: https://rhodeck.example.org.",
    )
    webhook_secrets_dir: Path | None = Field(
        default=None,
        description="Folder of the files webhooks are signed with (default: in the state folder).",
    )
    finance_timezone: str = Field(
        default="UTC", description="IANA time zone in which finance's months begin and end."
    )

    finance_key_file: Path | None = Field(
        default=None,
        description="File of the key closed months are signed with (default: finance.key in the state "
        "folder, made at the first close).",
    )
    finance_account: str = Field(
        default="rhodeck",
        pattern=_FINANCE_NAME,
        description="Billing account in FOCUS files: the cost centre that pays for the fleet.",
    )
    finance_provider: str = Field(
        default="Rhodeck",
        pattern=_FINANCE_NAME,
        description="Service provider and invoice issuer in FOCUS files: the team that runs the fleet.",
    )
    finance_host: str | None = Field(
        default=None,
        pattern=_FINANCE_NAME,
        description="Host provider in FOCUS files: whose machines they are (default: the provider).",
    )

    @field_validator("database_url")
    @classmethod
    def _must_be_postgres(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            parse_dsn(value.get_secret_value())
        return value

    @field_validator("state_dir", "admin_token_file", "webhook_secrets_dir", "finance_key_file")
    @classmethod
    def _must_be_absolute(cls, value: Path | None) -> Path | None:
        if value is not None and not value.expanduser().is_absolute():
            raise ValueError("write an absolute path")
        return None if value is None else value.expanduser()

    @field_validator("api_host", "control_host", "dashboard_host")
    @classmethod
    def _must_be_a_host(cls, value: str) -> str:
        if _address(value) is None and not _HOST_NAME.fullmatch(value):
            raise ValueError("write an IP address or a host name, without scheme or port")
        return value

    @field_validator("finance_timezone")
    @classmethod
    def _must_be_a_time_zone(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (ValueError, OSError, KeyError):  # malformed, a folder of the database, unknown
            raise ValueError("write an IANA name such as Europe/Berlin") from None
        return value

    @model_validator(mode="after")
    def _must_fit_together(self) -> Self:
        if self.scrape_deadline_s >= self.scrape_period_s:
            raise InvalidInput(
                f"RHODECK_SCRAPE_TIMEOUT_S is {self.scrape_deadline_s:g}, "
                f"not below RHODECK_SCRAPE_PERIOD_S, {self.scrape_period_s:g}",
                hint="Lower the timeout or lengthen the period",
                field="RHODECK_SCRAPE_TIMEOUT_S",
            )
        if self.sign_in is SignIn.NONE and not is_loopback(self.dashboard_host):
            raise InvalidInput(
                f"RHODECK_DASHBOARD_HOST is {self.dashboard_host}, but nobody has to sign in",
                hint="Set RHODECK_SIGN_IN=local, or listen on 127.0.0.1",
                field="RHODECK_DASHBOARD_HOST",
            )
        if self.admin_token is not None and self.admin_token_file is not None:
            raise InvalidInput(
                "RHODECK_ADMIN_TOKEN and RHODECK_ADMIN_TOKEN_FILE are both set",
                hint="Keep the file, unset the other",
                field="RHODECK_ADMIN_TOKEN",
            )
        return self

    @property
    def scrape_deadline_s(self) -> float:
        """Seconds one node may take: as set, else 5 or 80 % of a short period."""
        if self.scrape_timeout_s is not None:
            return self.scrape_timeout_s
        return min(5.0, 0.8 * self.scrape_period_s)

    @property
    def webhook_secrets(self) -> Path:
        """The folder of webhooks' secrets: as set, else in the state folder."""
        return self.webhook_secrets_dir or self.state_dir / "webhook_secrets"

    @property
    def finance_key(self) -> Path:
        """The file of the key months are signed with: as set, else in the state folder."""
        return self.finance_key_file or self.state_dir / "finance.key"

    def read_admin_token(self) -> SecretStr | None:
        """Return the token for gateways from the variable or the file; None if neither is set.

        Raises InvalidInput if the file cannot be read or holds fewer than 16 characters.
        """
        if self.admin_token_file is None:
            return self.admin_token
        try:
            token = self.admin_token_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as exc:
            raise InvalidInput(
                f"the token file {self.admin_token_file} cannot be read: {exc}",
                hint="Check the path and its permissions",
                field="RHODECK_ADMIN_TOKEN_FILE",
            ) from exc
        if len(token) < _ADMIN_TOKEN_MIN_CHARACTERS:
            raise InvalidInput(
                f"the token in {self.admin_token_file} has {len(token)} characters",
                hint=f"Use at least {_ADMIN_TOKEN_MIN_CHARACTERS} random characters",
                field="RHODECK_ADMIN_TOKEN_FILE",
            )
        return SecretStr(token)


def load_settings() -> Settings:
    """Read the environment. Raises InvalidInput naming the variables that are not usable.

    Call it at entry points only. Values of secrets are never part of the error.
    """
    try:
        return Settings()
    except ValidationError as exc:
        problems = [(_variable_at(error["loc"]), error["msg"].lower()) for error in exc.errors()]
        raise InvalidInput(
            "; ".join(f"{variable}: {problem}" for variable, problem in problems),
            hint="Correct the environment variable and start again",
            field=problems[0][0],
        ) from None


@dataclass(frozen=True, slots=True)
class SettingDescription:
    """One setting as documented: its variable, default (as text) and meaning."""

    variable: str
    default: str
    description: str
    is_secret: bool


def described_settings() -> list[SettingDescription]:
    """Return every setting in order of declaration, so that the documentation can be tested."""
    return [
        SettingDescription(
            variable=_variable(name, field),
            default=_default_text(field),
            description=field.description or "",
            is_secret="SecretStr" in str(field.annotation),
        )
        for name, field in Settings.model_fields.items()
    ]


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach `host`. Names other than localhost count as reachable."""
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _variable(name: str, field: FieldInfo) -> str:
    alias = field.validation_alias
    return alias if isinstance(alias, str) else f"{PREFIX}{name.upper()}"


def _variable_at(location: tuple[int | str, ...]) -> str:
    name = str(location[0]) if location else "settings"
    field = Settings.model_fields.get(name.lower())
    return name if field is None else _variable(name.lower(), field)


def _default_text(field: FieldInfo) -> str:
    if field.default_factory is not None:
        return f"$XDG_STATE_HOME/rhodeck, ~/.local/state/rhodeck; for root {ROOT_STATE_DIR}"
    if field.default is None:
        return "unset"
    return str(field.default)
