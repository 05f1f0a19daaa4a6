"""The engine against a twin that walks through every sequence and every token of every step.

The engine books sequences that decode together in one go; the twin keeps each one's own count of tokens
and blocks. Whatever requests come, leave or are preempted, both must tell the same story.
"""

import dataclasses
import random
from dataclasses import dataclass

import pytest

from fleet.engine import Engine
from fleet.engine_profile import EngineProfile
from fleet.engine_request import EngineRequest, EventKind

SMALL = EngineProfile(
    "small", alpha_s=0.01, beta_s=1e-4, gamma_s=1e-5, knee_seqs=4, beta_past_knee_s=3e-4, kappa_s=1e-7,
    max_num_seqs=6, max_num_batched_tokens=128, num_gpu_blocks=61, block_size=8, max_model_len=400,
)  # fmt: skip


@dataclass
class Walker:
    """One sequence of the twin."""

    name: str
    prompt: int
    output: int
    priority: int
    order: int
    made: int = 0
    in_cache: int = 0  # tokens whose keys and values are held
    to_prefill: int = 0
    reserved: int = 0  # blocks
    last_token_s: float = 0.0


class Twin:
    """A slow engine. Same rules, nothing shared."""

    def __init__(self, profile: EngineProfile) -> None:
        self.p = profile
        self.waiting: list[Walker] = []
        self.running: list[Walker] = []
        self.held = 0
        self.end_s: float | None = None
        self.tau_s = 0.0
        self.work: list[tuple[Walker, int]] = []  # (who, prefill tokens; 0 for a decode)
        self.story: list[tuple[str, str, float, int]] = []
        self.preemptions = 0
        self.gaps_s: list[float] = []

    def rank(self, w: Walker) -> tuple[int, int]:
        return (w.priority if self.p.scheduling_policy == "priority" else 0, w.order)

    def free(self) -> int:
        return self.p.num_gpu_blocks - 1 - self.held - sum(w.reserved for w in self.running)

    def blocks(self, tokens: int) -> int:
        return (tokens + self.p.block_size - 1) // self.p.block_size

    def evict(self, at_s: float) -> None:
        if self.p.scheduling_policy == "priority":
            victim = max(self.running, key=self.rank)
        else:
            victim = self.running[-1]
        if len(self.running) == 1:
            self.story.append(("finished", victim.name, at_s, victim.made))
        else:
            self.preemptions += 1
            victim.in_cache = victim.to_prefill = victim.reserved = 0
            self.waiting.append(victim)
        self.running.remove(victim)

    def begin(self, at_s: float) -> None:
        self.work, self.end_s = [], None
        evicted = False
        while True:
            decoders = [w for w in self.running if w.to_prefill == 0]
            need = sum(self.blocks(w.in_cache + 1) - w.reserved for w in decoders)
            if not self.running or need <= self.free():
                break
            self.evict(at_s)
            evicted = True
        for w in decoders:
            w.reserved = self.blocks(w.in_cache + 1)
            self.work.append((w, 0))
        budget = self.p.max_num_batched_tokens - len(decoders)
        for w in self.running:
            if w.to_prefill and budget:
                size = min(w.to_prefill, budget) if self.p.chunked_prefill else w.to_prefill
                budget -= size
                self.work.append((w, size))
        self.admit(budget, at_s, evicted=evicted)
        if self.work:
            decoders = [w for w, size in self.work if size == 0]
            resident = sum(w.in_cache + 1 for w in decoders)
            prefill = sum(size for _, size in self.work)
            self.tau_s = self.p.step_time_s(len(decoders), prefill, resident)
            self.end_s = at_s + self.tau_s

    def admit(self, budget: int, at_s: float, *, evicted: bool) -> None:
        self.waiting.sort(key=self.rank)
        is_static = self.p.batching == "static"
        is_open = not self.running if is_static else not (evicted and self.running)
        while is_open and self.waiting and (budget > 0 or is_static):
            if len(self.running) >= self.p.max_num_seqs:
                break
            w = self.waiting[0]
            total = w.prompt + w.made
            has_prefill = any(size for _, size in self.work)
            if not self.p.chunked_prefill and has_prefill and total > budget:
                break
            if self.blocks(total) > self.free():
                if self.running:
                    break
                self.waiting.pop(0)
                self.story.append(("finished", w.name, at_s, w.made))
                continue
            self.waiting.pop(0)
            w.reserved, w.to_prefill = self.blocks(total), total
            self.running.append(w)
            size = min(total, budget) if self.p.chunked_prefill else total
            budget -= size
            if size:
                self.work.append((w, size))

    def commit(self) -> None:
        at_s = self.end_s or 0.0
        for w, size in self.work:
            if w not in self.running:
                continue
            if size:
                w.to_prefill -= size
                w.in_cache += size
                if w.to_prefill:
                    continue
            else:
                w.in_cache += 1
            if w.made:
                self.gaps_s.append(at_s - w.last_token_s)
            else:
                self.story.append(("first", w.name, at_s, 1))
            w.made += 1
            w.last_token_s = at_s
            if w.made == w.output:
                self.running.remove(w)
                self.story.append(("finished", w.name, at_s, w.made))

    def run(self, now_s: float) -> None:
        while self.end_s is not None and self.end_s <= now_s:
            at_s = self.end_s
            self.commit()
            self.begin(at_s)

    def change(self, now_s: float, what) -> None:
        self.run(now_s)
        what()
        if self.end_s is None:
            self.begin(now_s)

    def abort(self, name: str, now_s: float) -> None:
        def drop() -> None:
            self.running = [w for w in self.running if w.name != name]
            self.waiting = [w for w in self.waiting if w.name != name]

        self.change(now_s, drop)

    def hold(self, blocks: int, now_s: float) -> None:
        self.change(now_s, lambda: setattr(self, "held", blocks))


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("kappa", [0.0, 1e-7])
@pytest.mark.parametrize("seed", range(12))
def test_both_tell_the_same_story(policy, kappa, seed):
    assert_same_story(dataclasses.replace(SMALL, scheduling_policy=policy, kappa_s=kappa), seed)


@pytest.mark.parametrize("batching", ["continuous", "static"])
@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_both_tell_the_same_story_of_static_batches_and_whole_prompts(batching, chunked, seed):
    assert_same_story(dataclasses.replace(SMALL, batching=batching, chunked_prefill=chunked), seed)


def assert_same_story(profile: EngineProfile, seed: int) -> None:
    policy, kappa = profile.scheduling_policy, profile.kappa_s
    rng, engine, twin, now = random.Random(f"{policy}{kappa}{seed}"), Engine(profile), Twin(profile), 0.0
    events = []
    for n in range(150):
        now += rng.expovariate(3.0)
        events += engine.advance(now)
        action = rng.random()
        if action < 0.80 or n < 5:
            prompt, output, priority = rng.randint(1, 250), rng.randint(1, 150), rng.randint(0, 2)
            engine.submit(EngineRequest(str(n), prompt, output, priority=priority), now)
            walker = Walker(str(n), prompt, output, priority, n)
            twin.change(now, lambda w=walker: twin.waiting.append(w))
        elif action < 0.95:
            name = str(rng.randrange(n))
            engine.abort(name, now)
            twin.abort(name, now)
        else:
            blocks = rng.choice([0, 0, 20, 45])
            engine.hold_blocks(blocks, now)
            twin.hold(blocks, now)
        assert engine.running == len(twin.running)
        used = sum(w.reserved for w in twin.running) + twin.held
        assert engine.kv_used_ratio == pytest.approx(min(1.0, used / 60))
    engine.hold_blocks(0, now)
    twin.hold(0, now)
    events += engine.advance(now + 10_000)
    twin.run(now + 10_000)

    kinds = {EventKind.FIRST_OUTPUT: "first", EventKind.FINISHED: "finished"}
    ours = sorted((e.request_id, kinds[e.kind], e.output_tokens) for e in events)
    assert ours == sorted((name, kind, made) for kind, name, _, made in twin.story)
    times = {(e.request_id, kinds[e.kind]): e.at_s for e in events}
    assert times == pytest.approx({(name, kind): at_s for kind, name, at_s, _ in twin.story})
    assert engine.tally.preemptions == twin.preemptions
    itl = engine.tally.histograms["itl_s"].snapshot()
    assert itl.count == len(twin.gaps_s)
    assert itl.sum == pytest.approx(sum(twin.gaps_s))
    assert (engine.running, engine.waiting, engine.kv_used_ratio) == (0, 0, 0.0)


def test_the_runs_above_meet_preemption_and_refusal():
    # otherwise the comparison would be of two engines that never had a difficulty
    preemptions = 0
    for seed in range(12):
        rng, engine, now = random.Random(f"fcfs0.0{seed}"), Engine(SMALL), 0.0
        for n in range(150):
            now += rng.expovariate(3.0)
            engine.submit(EngineRequest(str(n), rng.randint(1, 250), rng.randint(1, 150)), now)
        preemptions += engine.tally.preemptions
    assert preemptions > 50
