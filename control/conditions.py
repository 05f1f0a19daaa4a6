"""What may be said about one gateway, from what it should run and what it last said. Pure.

Every condition is about the newest word of the gateway, never about what was sent. Prevents: "converged"
shown for a gateway that took the policy an hour ago and has not been heard since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from control.queries_policy import Condition
from fleet.errors import InvalidPolicy
from fleet.messages import GatewayStatus, TenantShare

FIRST_BACKOFF_S = 0.5


@dataclass(frozen=True, slots=True)
class Desired:
    """What the controller wants one gateway to run, and under which fencing token it says so."""

    revision: int
    epoch: int
    generation: int
    digest: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """A desired content that was refused. `generation` None: the controller itself would not send it."""

    generation: int | None
    message: str
    pointer: str | None


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of one gateway between two looks; the columns of `gateway_observed`."""

    seen_at: datetime | None = None
    tried_at: datetime | None = None
    contact_lost_at: datetime | None = None
    failures: int = 0
    retry_at: datetime | None = None
    boot_id: str | None = None
    epoch: int | None = None
    generation: int | None = None
    revision: int | None = None
    digest: str | None = None
    acked_at: datetime | None = None
    condition: Condition = "unknown"
    message: str = ""
    rejected_generation: int | None = None
    rejected_pointer: str | None = None
    rejected_message: str | None = None
    status: dict[str, Any] | None = None


def refusal_words(error: InvalidPolicy, status: Mapping[str, Any] | None) -> str:
    """Return why a gateway refused a policy; of one that is older than a field, that, with its release.

    `status` is what it said last. An older release can only say that a field is one too many (pydantic).
    """
    if "Extra inputs are not permitted" not in error.message:
        return error.message
    release = f"release {status['version']}" if status and status.get("version") else "its release"
    field = (error.field or "a field of the policy").removeprefix("/policy")
    return f"{release} does not know {field}; it goes on by its last policy: upgrade the gateway"


def holds(known: Known, desired: Desired) -> bool:
    """Say whether the gateway's last word is exactly the desired content."""
    return (known.generation, known.digest) == (desired.generation, desired.digest)


def condition(
    known: Known, desired: Desired | None, refusal: Refusal | None = None
) -> tuple[Condition, str]:
    """Return the condition and the reason in words; the reason of "converged" is empty.

    `known.acked_at` says whether this gateway confirmed the desired content before: one that did and now
    holds something else drifts, one that did not is behind.
    """
    if known.contact_lost_at is not None:
        return "unreachable", known.message
    if known.seen_at is None:
        return "unknown", "no controller has asked it yet"
    if refusal is not None and (desired is None or refusal.generation == desired.generation):
        return "rejected", refusal.message
    if desired is None:
        return "unknown", "no policy is meant for it yet"
    foreign = _foreign(known, desired)
    if foreign is not None:
        return "drifting", foreign
    if holds(known, desired):
        return "converged", ""
    holding = f"revision {known.revision}" if known.revision is not None else "no policy"
    if known.acked_at is not None:
        return "drifting", f"it took revision {desired.revision} and holds {holding} again"
    return "behind", f"it holds {holding}, revision {desired.revision} is on its way"


def _foreign(known: Known, desired: Desired) -> str | None:
    """Return why what the gateway holds cannot have come from this controller; None if it can."""
    epoch, generation = known.epoch or 0, known.generation or 0
    if epoch > desired.epoch:
        return f"it holds epoch {epoch}, this controller leads with {desired.epoch}"
    if generation > desired.generation:
        return f"it holds generation {generation}, the controller made {desired.generation}"
    if generation == desired.generation and known.digest != desired.digest:
        return f"it holds another content under generation {generation}"
    return None


def after_answer(known: Known, status: GatewayStatus, now: datetime) -> Known:
    """Return what is known after the gateway spoke: contact stands, and this is what it runs.

    An earlier confirmation counts no longer if contact was lost or the process restarted since.
    """
    is_same_life = known.contact_lost_at is None and known.boot_id == status.boot_id
    return replace(
        known,
        seen_at=now,
        tried_at=now,
        contact_lost_at=None,
        failures=0,
        retry_at=None,
        boot_id=status.boot_id,
        epoch=status.epoch,
        generation=status.generation,
        revision=status.revision,
        digest=status.digest,
        acked_at=known.acked_at if is_same_life else None,
        status=status.model_dump(mode="json", by_alias=True),
    )


def after_silence(known: Known, why: str, now: datetime, *, cap_s: float, jitter: float) -> Known:
    """Return what is known after a call failed: contact is lost, and when to try again.

    The wait doubles from 0.5 s up to `cap_s`; `jitter` (0..1) spreads it over its upper half, so that
    controllers do not knock together.
    """
    failures = known.failures + 1
    wait_s = min(cap_s, FIRST_BACKOFF_S * 2.0 ** min(failures - 1, 30)) * (0.5 + 0.5 * jitter)
    return replace(
        known,
        tried_at=now,
        contact_lost_at=known.contact_lost_at or now,
        failures=failures,
        retry_at=now + timedelta(seconds=wait_s),
        acked_at=None,
        condition="unreachable",
        message=why,
    )


def after_lost_push(known: Known, held: Mapping[str, TenantShare]) -> Known:
    """Return what is known after a push that may have been taken: `held` is the most it holds."""
    shares = {tenant: share.model_dump(mode="json") for tenant, share in held.items()}
    return replace(known, status=(known.status or {}) | {"shares": shares})


def settled(known: Known, desired: Desired | None, refusal: Refusal | None, now: datetime) -> Known:
    """Return what is known with its condition: the last step of a look.

    "Applied" begins (`acked_at`) when the desired content is confirmed, and ends with contact, with the
    process, or when something else becomes desired.
    """
    name, message = condition(known, desired, refusal)
    return replace(
        known,
        condition=name,
        message=message,
        acked_at=(known.acked_at or now) if name == "converged" else None,
        rejected_generation=refusal.generation if refusal else known.rejected_generation,
        rejected_pointer=refusal.pointer if refusal else known.rejected_pointer,
        rejected_message=refusal.message if refusal else known.rejected_message,
    )
