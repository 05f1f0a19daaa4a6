"""Does a model fit, spread how, how fast at best, and with which flags: the answer of sizing.

Times in seconds, memory in bytes of one GPU, batches and rates of the whole set of GPUs. Every way of
spreading is judged, refused ones with their reason. Prevents: "it fits" that leaves no room for one
request, and a tensor-parallel size chosen for its name.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet.errors import InvalidInput
from fleet.gpus import Gpu
from fleet.model_config import ModelShape
from fleet.sizing_flags import Flag, suggested_flags
from fleet.sizing_layout import EngineSettings, Layout, refusal
from fleet.sizing_memory import Memory, memory
from fleet.sizing_roofline import EFFICIENCY, Bound, Roofline, largest_batch
from fleet.sizing_weights import active_parameters, parameters, stored_bytes


@dataclass(frozen=True, slots=True)
class Demand:
    """What is asked: lengths of a typical request and its limits."""

    prompt_tokens: int = 2000
    output_tokens: int = 300
    ttft_s: float = 0.5
    token_s: float = 0.05

    def __post_init__(self) -> None:
        """Raises InvalidInput for lengths or limits that cannot be."""
        for name in ("prompt_tokens", "output_tokens"):
            if not 1 <= getattr(self, name) <= 50_000_000:
                raise InvalidInput(
                    f"{name} is {getattr(self, name)}", field=name, hint="From 1 to 50000000"
                )
        for name in ("ttft_s", "token_s"):
            if not 0 < getattr(self, name) <= 3600:
                raise InvalidInput(
                    f"{name} is {getattr(self, name)}", field=name, hint="Above 0 s, at most 3600"
                )

    @property
    def mean_context(self) -> float:
        """Tokens a request holds on average while it decodes."""
        return self.prompt_tokens + self.output_tokens / 2


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to spread the model. `refused` says why it cannot be; the rest is None then."""

    layout: Layout
    refused: str | None
    memory: Memory | None = None
    notes: tuple[str, ...] = ()
    batch: int = 0  # sequences of all replicas together, within the SLO and the cache
    batch_limit: str = ""  # what stops the batch: `cache`, `token time`, `max-num-seqs`
    step: Bound | None = None  # one decoding step at that batch
    first: Bound | None = None  # one typical prompt alone
    tokens_per_s: float = 0.0  # output tokens/s of all replicas at that batch, at the low efficiency

    @property
    def batch_a_replica(self) -> int:
        """Return the sequences one replica runs at once: what its `max_num_seqs` is about."""
        return self.batch // self.layout.dp

    def why_none(self, token_s: float) -> str:
        """Return why no sequence runs, in words; "" where some do. `token_s`: time allowed a token, s."""
        if self.batch or self.step is None:
            return ""
        if self.batch_limit == "token time":
            planned, allowed = self.step.total_s / EFFICIENCY[0] * 1e3, token_s * 1e3
            return f"one sequence alone takes about {planned:.1f} ms a token, allowed are {allowed:.0f} ms"
        return "its KV cache holds no request of this length"

    @property
    def is_possible(self) -> bool:
        return self.refused is None


@dataclass(frozen=True, slots=True)
class Sizing:
    """The answer. `best` is None if nothing fits."""

    shape: ModelShape
    gpu: Gpu
    gpus: int
    settings: EngineSettings
    demand: Demand
    parameters: float
    active_parameters: float
    stored_bytes: float
    choices: tuple[Choice, ...]  # possible ones first, the most output tokens/s first
    best: Choice | None
    flags: tuple[Flag, ...]
    warnings: tuple[str, ...]


def size(shape: ModelShape, gpu: Gpu, gpus: int, settings: EngineSettings, demand: Demand) -> Sizing:
    """Return every way to spread the model over `gpus` (1..1024) GPUs of one kind, best first.

    Best: the most output tokens/s with every token in time; among equals the fewest GPUs that wait for
    each other. Raises InvalidInput if `gpus` is out of range.
    """
    if not 1 <= gpus <= 1024:
        raise InvalidInput(f"{gpus} GPUs", field="gpus", hint="From 1 to 1024")
    tried = [judge(shape, gpu, layout, settings, demand) for layout in layouts(shape, gpus)]
    ordered = sorted(
        tried, key=lambda c: (not c.is_possible, -c.tokens_per_s, c.layout.tp * c.layout.pp, c.layout.pp)
    )
    best = ordered[0] if ordered and ordered[0].is_possible else None
    return Sizing(
        shape=shape,
        gpu=gpu,
        gpus=gpus,
        settings=settings,
        demand=demand,
        parameters=parameters(shape),
        active_parameters=active_parameters(shape),
        stored_bytes=stored_bytes(shape),
        choices=tuple(ordered),
        best=best,
        flags=() if best is None else suggested_flags(shape, settings, best.layout, best.batch),
        warnings=_warnings(shape, settings, demand),
    )


def layouts(shape: ModelShape, gpus: int) -> list[Layout]:
    """Return the ways to use all `gpus`: tp x pp x dp, and experts spread where there are some."""
    found: list[Layout] = []
    for tp in (n for n in range(1, min(gpus, 16) + 1) if gpus % n == 0):
        rest = gpus // tp
        for pp in (n for n in range(1, min(rest, 8) + 1) if rest % n == 0):
            found.append(Layout(tp, pp, rest // pp))
            if shape.experts is not None and pp == 1 and gpus > 1:
                found.append(Layout(tp, pp, rest, expert_parallel=True))
    return found


def judge(shape: ModelShape, gpu: Gpu, layout: Layout, settings: EngineSettings, demand: Demand) -> Choice:
    """Return what one way of spreading gives, or why it cannot be."""
    why = refusal(shape, layout)
    if why is not None:
        return Choice(layout, why)
    found = memory(shape, gpu, layout, settings)
    if found.kv_bytes.expected <= 0:
        needed = found.weight_bytes + found.overhead.expected
        return Choice(
            layout,
            f"needs {needed / 1e9:.1f} GB a GPU for weights and work, has {found.usable_bytes / 1e9:.1f}",
            found,
        )
    if not found.fits:
        longest = settings.context(shape)
        return Choice(
            layout,
            f"one request of {longest} tokens needs {found.request_bytes / 1e9:.1f} GB of cache, "
            f"{found.kv_bytes.expected / 1e9:.1f} are left: lower --max-model-len",
            found,
        )
    return _possible(shape, gpu, layout, settings, demand, found)


def _possible(
    shape: ModelShape,
    gpu: Gpu,
    layout: Layout,
    settings: EngineSettings,
    demand: Demand,
    found: Memory,
) -> Choice:
    roofline = Roofline.of(shape, gpu, layout, settings)
    held = demand.prompt_tokens + demand.output_tokens
    room = int(found.tokens.expected // held)
    allowed = min(room, settings.max_seqs)
    batch = largest_batch(roofline, context=demand.mean_context, token_s=demand.token_s, limit=allowed)
    limit = "token time" if batch < allowed else ("cache" if room <= settings.max_seqs else "max-num-seqs")
    step = roofline.decode(max(1, batch), demand.mean_context)
    first = roofline.prefill(demand.prompt_tokens)
    notes = list(_notes(shape, gpu, layout))
    if (planned := first.total_s / EFFICIENCY[0]) > demand.ttft_s:
        notes.append(
            f"a typical prompt alone takes about {planned:.2f} s, allowed are {demand.ttft_s:.2f} s"
        )
    return Choice(
        layout=layout,
        refused=None,
        memory=found,
        notes=tuple(notes),
        batch=batch * layout.dp,
        batch_limit=limit,
        step=step,
        first=first,
        tokens_per_s=layout.dp * batch * EFFICIENCY[0] / step.total_s,
    )


def _notes(shape: ModelShape, gpu: Gpu, layout: Layout) -> tuple[str, ...]:
    notes: list[str] = []
    if shape.latent is not None and layout.tp > 1:
        notes.append(
            f"each of {layout.tp} GPUs holds the whole latent cache: DP holds {layout.tp} times as much"
        )
    elif layout.tp > shape.kv_heads:
        notes.append(f"{shape.kv_heads} KV heads are copied {layout.tp // shape.kv_heads} times")
    if layout.tp > 1 and not gpu.is_nvlink:
        notes.append("no NVLink: all-reduces go over PCIe; PP or DP wait less")
    if layout.tp > 8:
        notes.append("tensor parallel beyond 8 GPUs leaves the node: links are slower than assumed")
    if layout.pp > 1:
        notes.append("a token waits for every stage; stages idle unless enough requests run")
    if layout.expert_parallel:
        notes.append("uneven experts slow every GPU: watch the spread, the bound assumes an even one")
    return tuple(notes)


def _warnings(shape: ModelShape, settings: EngineSettings, demand: Demand) -> tuple[str, ...]:
    warnings: list[str] = []
    if shape.has_vision:
        warnings.append("the vision encoder and its cache are not sized; they come on top")
    if demand.prompt_tokens + demand.output_tokens > settings.context(shape):
        warnings.append(
            f"a typical request of {demand.prompt_tokens + demand.output_tokens} tokens is longer than the "
            f"longest allowed, {settings.context(shape)}"
        )
    if settings.kv_bits == 8 and shape.latent is not None:
        warnings.append("fp8 latent caches are laid out by kernel; some take 656 bytes a token and layer")
    return tuple(warnings)
