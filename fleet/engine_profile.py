"""What a simulated engine costs and holds: step-time coefficients, slots, KV blocks, named profiles.

Times are seconds, sizes are tokens or blocks. A step with `b` decoding sequences and `p` prefill tokens
takes `alpha + beta(b) + gamma p + kappa r`, r being the KV tokens in use; beta has one slope below the
knee and another above it. Prevents: a capacity claimed for a profile that its coefficients do not give.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fleet.errors import InvalidInput, NotFound


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """One engine configuration. Defaults follow vLLM's own where it has one."""

    name: str
    alpha_s: float  # fixed cost of a step
    beta_s: float  # cost of one decoding sequence in a step, up to the knee
    gamma_s: float  # cost of one prefill token
    knee_seqs: int | None = None  # sequences at which the slope changes; None: one slope
    beta_past_knee_s: float | None = None  # slope above the knee; needs `knee_seqs`
    kappa_s: float = 0.0  # cost of one KV token read in a step
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    num_gpu_blocks: int = 37_501  # one of them is the null block, never used
    block_size: int = 16
    max_model_len: int = 16_384
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    batching: Literal["continuous", "static"] = "continuous"  # static: a batch ends before the next begins
    chunked_prefill: bool = True  # False: a prompt is computed whole, in one step
    prefix_hit_ratio: float = 0.0  # share of each prompt found in the prefix cache, in whole blocks
    model: str = "simulated"
    mean_output_tokens: float = 300.0  # of answers whose length the request does not fix
    output_cv: float = 0.8

    def __post_init__(self) -> None:
        for name in ("alpha_s", "beta_s", "gamma_s", "kappa_s"):
            if getattr(self, name) < 0:
                raise InvalidInput(f"{name} is {getattr(self, name)}", field=name, hint="Use 0 or more")
        if self.alpha_s + self.beta_s <= 0:
            raise InvalidInput("a step would take no time", field="alpha_s", hint="Give alpha_s > 0")
        if (self.knee_seqs is None) != (self.beta_past_knee_s is None):
            raise InvalidInput(
                "a knee needs both knee_seqs and beta_past_knee_s", field="knee_seqs", hint="Give both"
            )
        if min(self.max_num_seqs, self.block_size, self.max_model_len) < 1 or self.num_gpu_blocks < 2:
            raise InvalidInput("slots, blocks and lengths must be positive", field="max_num_seqs")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise InvalidInput(
                f"max_num_batched_tokens {self.max_num_batched_tokens} is below max_num_seqs "
                f"{self.max_num_seqs}",
                field="max_num_batched_tokens",
                hint="Every decoding sequence takes one token of the budget in each step",
            )
        if not 0 <= self.prefix_hit_ratio < 1:
            raise InvalidInput("prefix_hit_ratio must be in [0, 1)", field="prefix_hit_ratio")

    @property
    def usable_blocks(self) -> int:
        """Blocks a sequence can hold: all but the null block."""
        return self.num_gpu_blocks - 1

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens that fit the KV cache when every block is full."""
        return self.usable_blocks * self.block_size

    def step_time_s(self, decoding: int, prefill_tokens: int = 0, kv_tokens: int = 0) -> float:
        """Return the seconds one step takes.

        Source: step-time models of vLLM schedulers (linear in sequences and prefill tokens, two slopes).
        """
        if self.knee_seqs is None or self.beta_past_knee_s is None or decoding <= self.knee_seqs:
            decode_s = self.beta_s * decoding
        else:
            past = decoding - self.knee_seqs
            decode_s = self.beta_s * self.knee_seqs + self.beta_past_knee_s * past
        return self.alpha_s + decode_s + self.gamma_s * prefill_tokens + self.kappa_s * kv_tokens


def throughput_at_batch(
    profile: EngineProfile, batch: float, mean_prompt_tokens: float, mean_output_tokens: float
) -> float:
    """Return X(b) = b / (O tau(b)), requests/s, of a steady mix with `batch` (> 0) decoding sequences.

    Each step then carries b I / O prefill tokens. Lengths are means, in tokens. Below the knee, at it
    and above it the two slopes of the profile apply; kappa is left out (it needs resident tokens).
    """
    if batch <= 0 or mean_output_tokens <= 0:
        raise InvalidInput("batch and mean output must be above 0", hint="Give positive means")
    knee = profile.knee_seqs
    past = 0.0 if knee is None else max(0.0, batch - knee)
    slope_past = profile.beta_past_knee_s or 0.0
    prefill_tokens = batch * mean_prompt_tokens / mean_output_tokens
    tau_s = (
        profile.alpha_s
        + profile.beta_s * (batch - past)
        + slope_past * past
        + profile.gamma_s * prefill_tokens
    )
    return batch / (mean_output_tokens * tau_s)


#: 8xH100 node with a 70B model in FP8, sized as in the common planning example: 2,400 total tokens/s,
#: 3 req/s at 500 in + 300 out. Derivation in docs/simfleet.md.
H100_70B_FP8 = EngineProfile(
    name="h100-70b-fp8",
    alpha_s=0.014,
    beta_s=0.00065,
    knee_seqs=12,
    beta_past_knee_s=0.000903,
    gamma_s=22e-6,
    max_num_seqs=64,
    max_num_batched_tokens=8192,
    num_gpu_blocks=8_193,
    block_size=16,
    max_model_len=16_384,
    scheduling_policy="priority",
    model="llama-3.3-70b-fp8",
)

#: Four slots and quick steps: about 240 output tokens/s alone. For tests.
TINY = EngineProfile(
    name="tiny",
    alpha_s=0.004,
    beta_s=0.0001,
    gamma_s=5e-6,
    max_num_seqs=4,
    max_num_batched_tokens=2048,
    num_gpu_blocks=513,
    block_size=16,
    max_model_len=1024,
    model="tiny",
    mean_output_tokens=60.0,
)

PROFILES: dict[str, EngineProfile] = {profile.name: profile for profile in (H100_70B_FP8, TINY)}


def profile_named(name: str) -> EngineProfile:
    """Return the named profile. Raises NotFound with the names there are."""
    if name not in PROFILES:
        raise NotFound(
            f"there is no engine profile {name!r}",
            field="profile",
            hint=f"Use one of: {', '.join(PROFILES)}",
        )
    return PROFILES[name]
