"""Controllers that push to gateways, in virtual time: one seed is one schedule of faults and edits.

Real are the controller's pass (`control.reconcile.tick`), the rollout's machine, the rule by which a
gateway takes an assignment, its reader, its last-good file and its gate. Played are the wire (it loses,
delays and repeats), the database (a lease row with an epoch, rows that a dead epoch may not write), clocks
and processes. `Mutant` takes single safeguards out, to show that an oracle misses them.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from admission import lastgood
from control import assignments, gateways, lease, reconcile, reconcile_store
from control.assignments import Target, build, encode, must_wait
from control.conditions import Desired, Known
from control.deps import Deps, Finding, Leadership, Verdict
from control.queries_policy import Rollout
from control.reconcile_store import Ack, Place
from control.rollout import Stand, advance
from fleet.acceptance import is_news
from fleet.errors import InvalidPolicy, StaleAssignment, Unavailable
from fleet.gate import Dispatch, Gate, Lease, NodeState, Request
from fleet.messages import Assignment, GatewayStatus, NodeTarget, parse_assignment
from fleet.outcomes import Outcome
from fleet.policy import Policy, default_policy, parse
from tests.oracles import history as h
from tests.oracles.history import History

START = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
TENANT = "acme"
QUOTA = {
    "tokens_per_minute": 6_001,
    "burst_tokens": 4_000,
    "max_in_flight_tokens": 10_000,
    "max_concurrent_requests": 100,
}
NODE = NodeTarget(name="n1", pool="main", base_url="http://127.0.0.1:1", models=("m",))
TTL_S = 15.0
FOREIGN = b',"color":"red"'


@dataclass(frozen=True, slots=True)
class Mutant:
    """Safeguards that are in place; False takes one out."""

    fences_pushes: bool = True  # a gateway refuses older epochs
    fences_writes: bool = True  # the database refuses a dead epoch's writes
    checks_hash: bool = True  # another content under a held number is refused
    checks_disk: bool = True  # the file's sha256 is verified at the start
    has_boot_gate: bool = True  # nothing is admitted before an assignment is in force
    checks_schema: bool = True  # unknown fields are refused
    keeps_levels: bool = True  # a push leaves buckets alone
    waits_for_shares: bool = True  # larger parts wait until others gave theirs up
    forgets_silence: bool = True  # "applied" ends with contact


SOUND = Mutant()


def policies() -> list[Policy]:
    """Return revisions' contents: other weights, the same quota."""
    made: list[Policy] = []
    for batch in range(20, 30):
        document = default_policy().as_document()
        document["tiers"]["interactive"]["weight"] = 95 - batch
        document["tiers"]["batch"]["weight"] = batch
        tenant = {"tier": "interactive", "allowed_tiers": ["interactive"], **QUOTA}
        made.append(parse(document | {"tenants": {TENANT: tenant}}))
    return made


POLICIES = policies()


class Library:
    """Contents and what they read as, made once: a schedule differs in order, not in documents."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, tuple[str, ...]], dict[str, Target]] = {}
        self._read: dict[bytes, tuple[Assignment, str] | InvalidPolicy] = {}

    def of(self, revision: int, names: tuple[str, ...]) -> dict[str, Target]:
        """Return each gateway's target for a revision and a set of gateways."""
        key = (revision, names)
        if key not in self._made:
            policy = POLICIES[revision % len(POLICIES)]
            self._made[key] = encode(build(policy, revision, names, [NODE], [], ()))
        return self._made[key]

    def read(self, body: bytes) -> tuple[Assignment, str]:
        """Return what a gateway reads of a body. Raises InvalidPolicy."""
        head, _, rest = body.partition(b',"generation":')
        number, _, content = rest.partition(b",")
        found = self._read.get(content)
        if found is None:
            try:
                assignment = parse_assignment(body)
                found = (assignment, assignment.digest())
            except InvalidPolicy as exc:
                found = exc
            self._read[content] = found
        if isinstance(found, InvalidPolicy):
            raise found
        assignment, digest = found
        numbers = {"epoch": int(head.removeprefix(b'{"epoch":')), "generation": int(number)}
        return assignment.model_copy(update=numbers), digest


class JumpyClock:
    """Wall time that can jump, and a monotonic clock that cannot."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0
        self.jumped_s = 0.0

    def now(self) -> datetime:
        return START + timedelta(seconds=self.elapsed_s + self.jumped_s)

    def unix_s(self) -> float:
        return self.now().timestamp()

    def monotonic_s(self) -> float:
        return self.elapsed_s


class PlayedGateway:
    """One gateway process and its folder."""

    def __init__(self, name: str, world: PushWorld, folder: Path) -> None:
        self.name = name
        self.world = world
        self.folder = folder
        self.boots = 0
        self.is_deaf = False
        self.leases: dict[str, tuple[Lease, int]] = {}
        self.saved: Assignment | None = None  # what its folder holds
        self._said: tuple[object, GatewayStatus] | None = None
        self.boot()

    def boot(self, *, has_disk: bool = True, is_damaged: bool = False) -> None:
        """Begin a new process on what the folder holds; without it, on nothing."""
        if not has_disk:
            self.saved = None
            self.world.sound.pop(self.name, None)
        for request_id in self.leases:
            self.world.seen.add(h.Settled(request_id))  # by the journal, when it starts again
        self.leases.clear()
        self.world.late = [one for one in self.world.late if one[0] != self.name]  # their wire died with it
        self.boots += 1
        self.boot_id = f"{self.name}.{self.boots}"
        self.held: Assignment | None = None
        self.digest: str | None = None
        self.from_disk = False
        self.gate = Gate(self.world.chance)
        found = None if self.saved is None else self._load(self.saved, is_damaged=is_damaged)
        sound = self.world.sound.get(self.name)
        kept = h.Running(self.boot_id, *(sound or (0, 0, None, None)))
        if found is not None:
            self._adopt(found, found.digest() if not self.world.mutant.checks_disk else str(kept.digest))
            self.from_disk = True
        elif not self.world.mutant.has_boot_gate:
            self.gate.apply(next(iter(self.world.library.of(1, (self.name,)).values())).assignment, 0.0)
        self.world.seen.add(h.Booted(self.name, kept, self.running()))

    def _load(self, saved: Assignment, *, is_damaged: bool) -> Assignment | None:
        """Write the file as the last push did, change a digit where it is damaged, and read it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lastgood.save(self.folder, saved)
        path = self.folder / lastgood.FILE_NAME
        if is_damaged:  # it still reads as an assignment
            path.write_bytes(path.read_bytes().replace(b'"burst_tokens":4000', b'"burst_tokens":9000'))
            self.saved = None
            self.world.sound.pop(self.name, None)
        try:
            if self.world.mutant.checks_disk:
                return lastgood.load(self.folder, self.name)
            return parse_assignment(path.read_bytes().partition(b"\n")[2])
        except lastgood.DamagedLastGood:
            return None

    def _adopt(self, assignment: Assignment, digest: str) -> None:
        self.held, self.digest = assignment, digest
        self.gate.apply(assignment, self.world.clock.monotonic_s())

    def running(self) -> h.Running:
        held = self.held
        if held is None:
            return h.Running(self.boot_id, 0, 0, None)
        return h.Running(self.boot_id, held.epoch, held.generation, self.digest, held.revision)

    def status(self) -> GatewayStatus:
        now = (self.running(), self.from_disk)
        if self._said is None or self._said[0] != now:
            self._said = (now, self._status())
        return self._said[1]

    def _status(self) -> GatewayStatus:
        held = self.held
        return GatewayStatus.model_construct(
            gateway=self.name,
            boot_id=self.boot_id,
            version="1",
            ready=held is not None,
            epoch=held.epoch if held else 0,
            generation=held.generation if held else 0,
            revision=held.revision if held else None,
            digest=self.digest,
            from_disk=self.from_disk,
            shares=held.shares if held else {},
            in_flight_requests=0,
            in_flight_tokens=0,
            queues={},
            nodes_usable=1,
            nodes_total=1,
            usage_spool="s",
            usage_last_seq=0,
            clock_at_s=0.0,
            started_at_s=0.0,
        )

    def take(self, body: bytes, sender: str) -> GatewayStatus:
        """Take in a push. Raises what a gateway answers with 409 or 422."""
        world, before = self.world, self.running()
        is_foreign = FOREIGN in body
        sent = (0, 0, None)
        answer = "invalid"
        try:
            if not world.mutant.checks_schema:  # takes what it knows of it
                body = body.replace(FOREIGN, b"")
            assignment, digest = world.library.read(body)
            sent = (assignment.epoch, assignment.generation, digest)
            answer = "stale"
            answer = "taken" if self._is_news(assignment, digest) else "same"
            if answer == "taken":
                self._put_in_force(assignment, digest)
            self.from_disk = False
            return self.status()
        finally:
            world.seen.add(
                h.Arrived(self.name, sender, *sent, answer, before, self.running(), is_foreign=is_foreign)
            )

    def _is_news(self, assignment: Assignment, digest: str) -> bool:
        mutant, held = self.world.mutant, self.held
        if held is not None and not mutant.fences_pushes:
            return (assignment.epoch, assignment.generation) != (held.epoch, held.generation)
        if held is not None and not mutant.checks_hash:
            is_same_number = (assignment.epoch, assignment.generation) == (held.epoch, held.generation)
            if is_same_number and digest != self.digest:
                return True
        return is_news(assignment, digest, held, self.digest)

    def _put_in_force(self, assignment: Assignment, digest: str) -> None:
        world = self.world
        self.saved = assignment
        world.sound[self.name] = (assignment.epoch, assignment.generation, digest, assignment.revision)
        before = self._levels()
        self._adopt(assignment, digest)
        if not world.mutant.keeps_levels:
            self.end_requests()
            self.gate = Gate(world.chance)
            self.gate.apply(assignment, world.clock.monotonic_s())
        after = self._levels()
        world.note_shares()
        if before[0]:
            world.seen.add(h.Levels(self.name, "push", before[0], after[0], before[1], after[1]))

    def _levels(self) -> tuple[Mapping[str, int], tuple[object, ...]]:
        now_s = self.world.clock.monotonic_s()
        use = self.gate.accounts.find(TENANT)
        if use is None:
            return {}, ()
        levels = self.gate.accounts.levels(now_s)
        return {TENANT: levels.get(TENANT, use.share.burst_tokens)}, (use.requests, use.tokens)

    def ask(self, request_id: str, tokens: int) -> None:
        """Let a client ask: admitted by the gate, ended by chance later."""
        world, now_s = self.world, self.world.clock.monotonic_s()
        state = NodeState(
            name="n1", seen_at_s=now_s, healthy=True, kv_capacity_tokens=100_000, kv_used_ratio=0.0
        )
        self.gate.observe([state], now_s)
        asked = Request(request_id, TENANT, None, "m", "chat", tokens, 10)
        decision = self.gate.offer(asked, now_s)
        is_admitted = isinstance(decision, Dispatch)
        revision = self.held.revision if self.held else 0
        if isinstance(decision, Dispatch):
            world.seen.add(h.Reserved(request_id))
            self.leases[request_id] = (decision.lease, revision)
        rules = frozenset({revision}) if is_admitted else frozenset[int]()
        world.seen.add(h.Asked(self.name, self.running(), is_admitted, rules))

    def end_requests(self) -> None:
        """End what runs."""
        now_s = self.world.clock.monotonic_s()
        for request_id, (held, _) in self.leases.items():
            if self.gate.release(
                held, prompt_tokens=10, output_tokens=10, outcome=Outcome.COMPLETED, now_s=now_s
            ):
                self.world.seen.add(h.Settled(request_id))
        self.leases.clear()


class PlayedStore:
    """The database: a lease row, what was given to each gateway, what is known of it, the rollout."""

    def __init__(self, world: PushWorld, names: Sequence[str]) -> None:
        self.world = world
        self.registered = list(names)
        self.owner, self.epoch, self.expires_s = "", 0, -1.0
        self.given: dict[str, tuple[int, str]] = {}
        self.known: dict[str, Known] = {}
        self.newest = 1
        self.rollouts = 0
        self.chosen: set[str] = set()
        self.start_rollout(1, base=None, is_staged=False)

    # -- the lease ----------------------------------------------------------------------------------

    def take(self, deps: Deps) -> None:
        """Take or renew the lease, as `control.lease` does."""
        now_s, leadership = self.world.clock.monotonic_s(), deps.leadership
        if self.owner != leadership.owner and self.expires_s > now_s:
            leadership.step_down()
            return
        if self.owner != leadership.owner or self.expires_s <= now_s:
            self.epoch += 1
        self.owner, self.expires_s = leadership.owner, now_s + TTL_S
        leadership.epoch, leadership.until_s = self.epoch, now_s + TTL_S - deps.lease_margin_s

    def _write(self, deps: Deps, epoch: int) -> None:
        leads = epoch == self.epoch and self.expires_s > self.world.clock.monotonic_s()
        if not leads and self.world.mutant.fences_writes:
            raise lease.LeaseLost(f"epoch {epoch} does not lead any more", hint="")
        self.world.seen.add(h.Wrote(deps.leadership.owner, epoch, self.epoch if not leads else epoch))

    # -- what `control.reconcile_store` does ----------------------------------------------------------

    def load(self, _deps: Deps, _now: datetime) -> list[Place]:
        names = tuple(sorted(self.registered))
        places: list[Place] = []
        for name in names:
            revision = self.rollout.revision_for(name)
            target = self.world.library.of(revision, names)[name] if revision else None
            generation, digest = self.given.get(name, (None, None))
            known = self.known.get(name, Known())
            places.append(Place(name, name, target, None, None, generation, digest, known))
        return places

    def store_generations(
        self,
        deps: Deps,
        epoch: int,
        raise_above: int | None,
        given: Mapping[str, Desired],
        places: Sequence[Place],
    ) -> int:
        self._write(deps, epoch)
        if raise_above is not None:
            self.epoch = epoch = raise_above + 1
        for place in places:
            if place.target is not None:
                self.given[place.name] = (given[place.name].generation, given[place.name].digest)
        return epoch

    def record(self, deps: Deps, epoch: int, known: Mapping[str, Known], _acks: Sequence[Ack]) -> None:
        self._write(deps, epoch)
        for name, state in known.items():
            if name in self.registered:
                if not self.world.mutant.forgets_silence and state.condition == "unreachable":
                    state = replace(self.known.get(name, state), tried_at=state.tried_at)
                self.known[name] = state

    # -- rollouts -----------------------------------------------------------------------------------

    def start_rollout(self, revision: int, *, base: int | None, is_staged: bool) -> None:
        now = self.world.clock.now()
        self.rollouts += 1
        self.chosen = set()
        state = "first" if is_staged and base is not None else "all"
        strategy = "staged" if is_staged else "all_at_once"
        self.rollout = Rollout(
            self.rollouts, revision, base, state, strategy, None, 2.0, None, "", now, now
        )

    def publish(self, *, is_staged: bool) -> None:
        before = self.rollout
        base = before.revision if before.state in ("all", "live") else before.base_revision
        self.newest += 1
        self.start_rollout(self.newest, base=base, is_staged=is_staged)

    def move_rollout(self, deps: Deps, epoch: int, finding: Finding) -> None:
        """Do one step of the rollout's machine."""
        now, rollout = self.world.clock.now(), self.rollout
        places = {place.name: place for place in self.load(deps, now)}
        stands = [
            Stand(
                name,
                known.seen_at is not None and known.contact_lost_at is None,
                known.acked_at is not None
                and known.revision == rollout.revision
                and (place := places[name]).target is not None
                and place.target.assignment.revision == rollout.revision,
                known.rejected_message if known.condition == "rejected" else None,
            )
            for name in sorted(self.registered)
            for known in [self.known.get(name, Known())]
        ]
        move = advance(rollout, stands, finding, now, evidence_wait_s=deps.evidence_wait_s)
        if move is None:
            return
        self._write(deps, epoch)
        if move.state != rollout.state:
            self.world.seen.add(
                h.Moved(rollout.revision, rollout.state, move.state, str(finding.verdict.value))
            )
        self.rollout = replace(
            rollout,
            state=move.state,
            reason=move.reason,
            first_gateway=move.first_gateway,
            bake_started_at=move.bake_started_at,
        )
        if move.first_gateway is not None:
            self.chosen.add(move.first_gateway)


FINDINGS = (
    Finding(Verdict.HEALTHY, "good"),
    Finding(Verdict.HEALTHY, "good"),
    Finding(Verdict.NO_DATA, "none"),
    Finding(Verdict.BREACHED, "slow"),
)


class PushWorld:
    """One schedule: two controllers, two or three gateways, faults by a seed."""

    def __init__(
        self, seed: int, folder: Path, library: Library, mutant: Mutant = SOUND, *, loses: bool = True
    ) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.chance = random.Random(seed)  # of what happens inside the parts
        self.losing = random.Random(seed + 1) if loses else None
        self.library = library
        self.mutant = mutant
        self.seen = History(f"seed {seed}")
        self.clock = JumpyClock()
        self.sound: dict[str, tuple[int, int, str, int]] = {}
        self.finding = FINDINGS[0]
        self.late: list[tuple[str, bytes, str]] = []
        self.requests = 0
        self.naps = 0  # a controller falls asleep in its next call
        self.is_napping = False
        names = [f"gw-{number}" for number in range(1, 1 + self.rng.choice([2, 2, 3]))]
        self.gateways = {name: PlayedGateway(name, self, folder / name) for name in names}
        self.store = PlayedStore(self, names)
        self.controllers = [self._controller(owner) for owner in ("a", "b")]

    def _controller(self, owner: str) -> Deps:
        nobody: Any = None
        return Deps(
            engine=nobody,
            clock=self.clock,
            leadership=Leadership(owner),
            http=cast(Any, lambda: owner),  # a name stands for the calls made under it
            admin_token="",
            rng=self.chance,
        )

    # -- the wire -----------------------------------------------------------------------------------

    async def status(self, sender: str, name: str) -> GatewayStatus:
        self.seen.add(h.Called(self.clock.monotonic_s(), sender))
        await self._maybe_sleep(sender)
        gateway = self.gateways[name]
        if gateway.is_deaf or self._is_lost():
            self.seen.add(h.Heard(name, None))
            raise Unavailable("no answer within 2 s")
        self.seen.add(h.Heard(name, gateway.running()))
        return gateway.status()

    async def push(self, sender: str, name: str, body: bytes) -> GatewayStatus:
        self.seen.add(h.Called(self.clock.monotonic_s(), sender))
        await self._maybe_sleep(sender)
        gateway = self.gateways[name]
        fate = self.losing.random() if self.losing else 1.0
        if gateway.is_deaf or fate < 0.05:
            self.seen.add(h.Heard(name, None))
            raise Unavailable("no answer within 2 s")
        if fate < 0.12:
            self.late.append((name, body, sender))
            self.seen.add(h.Heard(name, None))
            raise Unavailable("no answer within 2 s")
        answer = gateway.take(body, sender)
        if fate < 0.2:  # the same once more
            gateway.take(body, sender)
        if fate < 0.28:  # taken, and the answer is lost
            self.seen.add(h.Heard(name, None))
            raise Unavailable("the connection was cut")
        self.seen.add(h.Heard(name, gateway.running()))
        return answer

    def _is_lost(self) -> bool:
        return self.losing is not None and self.losing.random() < 0.05

    async def _maybe_sleep(self, sender: str) -> None:
        """Let a controller be stopped in the middle of its pass: the other takes over meanwhile."""
        if self.naps and not self.is_napping:
            self.naps -= 1
            self.is_napping = True
            other = next(deps for deps in self.controllers if deps.leadership.owner != sender)
            self.clock.elapsed_s += TTL_S + 0.1
            self._edit()
            for _ in range(2):
                self.clock.elapsed_s += 1.0
                await self.passes(other)
            self.is_napping = False

    # -- events -------------------------------------------------------------------------------------

    async def passes(self, deps: Deps) -> None:
        """Let a controller do its steps once."""
        self.store.take(deps)
        epoch = deps.leadership.current(self.clock)
        await reconcile.tick(deps)
        epoch = deps.leadership.current(self.clock)
        if epoch is None:
            return
        self._note_truth()
        try:
            self.store.move_rollout(deps, epoch, self.finding)
        except lease.LeaseLost:
            deps.leadership.step_down()

    def _edit(self) -> None:
        self.store.publish(is_staged=self.chance.random() < 0.5)

    def act(self) -> None:
        """Let one thing happen."""
        rng = self.rng = random.Random(self.seed * 1_000 + self.requests)  # whatever was drawn before
        gateway = rng.choice(list(self.gateways.values()))
        self._event(gateway)
        while self.late and self.chance.random() < 0.5:
            self._arrive(*self.late.pop(self.chance.randrange(len(self.late))))
        self.requests += 1
        gateway.ask(f"r{self.requests}", rng.choice([10, 900]))
        if rng.random() < 0.5:
            gateway.end_requests()

    def _event(self, gateway: PlayedGateway) -> None:  # noqa: C901
        rng = self.rng
        match rng.randrange(14):
            case 0 | 1:
                self._edit()
            case 2:
                gateway.boot()
            case 3:
                gateway.boot(has_disk=False)
            case 4:
                gateway.boot(is_damaged=True)
            case 5 if gateway.held is not None:
                self._by_hand(gateway)
            case 6:
                gateway.is_deaf = True
            case 7:
                for one in self.gateways.values():
                    one.is_deaf = False
            case 8:
                self.naps = 1
            case 9:
                self.store.expires_s = self.clock.monotonic_s()
                self.controllers.reverse()
            case 10:
                self.finding = rng.choice(FINDINGS)
            case 11 if gateway.held is not None:
                self._foreign(gateway)
            case 12:
                self._jump(rng.choice([3_600.0, -3_600.0]))
            case 13 if len(self.gateways) > 2:
                self._join_or_leave()
            case _:
                pass

    def _arrive(self, name: str, body: bytes, sender: str) -> None:
        with contextlib.suppress(StaleAssignment, InvalidPolicy):
            self.gateways[name].take(body, sender)

    def _by_hand(self, gateway: PlayedGateway) -> None:
        assert gateway.held is not None
        names = tuple(sorted(self.gateways))
        target = self.library.of(self.rng.randint(1, self.store.newest), names)[gateway.name]
        held = gateway.held
        if held.shares != target.assignment.shares:
            return
        generation = max(1, held.generation + self.rng.randrange(-1, 4))
        epoch = held.epoch + self.rng.choice([0, 0, 0, 2])
        self._arrive(gateway.name, target.body(epoch=epoch, generation=generation), "by hand")

    def _foreign(self, gateway: PlayedGateway) -> None:
        assert gateway.held is not None
        names = tuple(sorted(self.gateways))
        target = self.library.of(1, names)[gateway.name]
        body = target.body(epoch=gateway.held.epoch, generation=gateway.held.generation + 1)
        self._arrive(gateway.name, body[:-1] + FOREIGN + b"}", "by hand")

    def _jump(self, seconds: float) -> None:
        """Let the wall clock jump: gateways decide by the other one."""
        before = {name: one._levels() for name, one in self.gateways.items()}
        self.clock.jumped_s += seconds
        for name, one in self.gateways.items():
            if before[name][0]:
                after = one._levels()
                self.seen.add(
                    h.Levels(name, "wall clock", before[name][0], after[0], before[name][1], after[1])
                )

    def _join_or_leave(self) -> None:
        name = "gw-3"
        if name in self.store.registered:
            self.store.registered.remove(name)
            self.store.known.pop(name, None)
            self.store.given.pop(name, None)
        else:
            self.gateways[name].boot(has_disk=False)
            self.store.registered.append(name)

    # -- what is seen -------------------------------------------------------------------------------

    def _note_truth(self) -> None:
        """Note, after a leader's pass, what is shown, who runs an unbaked revision, who holds what."""
        store = self.store
        for name in store.registered:
            known = store.known.get(name, Known())
            is_applied = known.condition == "converged"
            self.seen.add(h.Told(name, is_applied, known.digest, known.boot_id, known.seen_at is not None))
        rollout = store.rollout
        if rollout.state in ("first", "baking", "paused"):
            held = {name: self.gateways[name].held for name in store.registered}
            runs = frozenset(n for n, one in held.items() if one and one.revision == rollout.revision)
            given = sum(rollout.revision_for(name) == rollout.revision for name in store.registered)
            chosen = frozenset(store.chosen) | self.touched(rollout.revision)
            self.seen.add(h.Spread(rollout.revision, runs, chosen, given, len(store.registered)))
        self.note_shares()

    def note_shares(self) -> None:
        """Note what gateways hold of the quota together, those left out that the leader gave up."""
        store = self.store
        parts = {
            name: one.held.shares[TENANT]
            for name, one in self.gateways.items()
            if one.held is not None and name in store.registered and not self._is_given_up(name)
        }
        for field_name, quota in QUOTA.items():
            of = tuple(int(getattr(part, field_name)) for part in parts.values())
            self.seen.add(h.Shared(f"{TENANT}.{field_name}", quota, of))

    def touched(self, revision: int) -> frozenset[str]:
        """Return where somebody put content of a revision by hand."""
        return frozenset(
            fact.gateway
            for fact in self.seen.of(h.Arrived)
            if fact.sender == "by hand" and fact.after.revision == revision
        )

    def _is_given_up(self, name: str) -> bool:
        """Say whether the leader counts a gateway's part no more: it was silent too long."""
        lost_at = self.store.known.get(name, Known()).contact_lost_at
        hold_s = self.controllers[0].hold_s
        return lost_at is not None and abs((self.clock.now() - lost_at).total_seconds()) > hold_s

    def note_pass(self) -> None:
        places = self.store.load(self.controllers[0], self.clock.now())
        desired = {place.name: place.digest for place in places}
        running = {name: self.gateways[name].digest for name in desired}
        self.seen.add(h.Passed(desired, running))

    async def run(self, events: int, passes_after: int = 4) -> History:
        """Let `events` things happen, a pass of both controllers after each; then let all be well."""
        for _ in range(events):
            self.act()
            self.clock.elapsed_s += self.rng.choice([0.5, 1.0, 5.0])
            for deps in self.controllers:
                await self.passes(deps)
            if self.naps:  # nobody made a call to fall asleep in
                self.naps = 0
                self._edit()
        await self.calm(passes_after)
        return self.seen

    async def calm(self, passes_after: int) -> None:
        self.losing = None
        self.naps = 0
        while self.late:
            self._arrive(*self.late.pop())
        for gateway in self.gateways.values():
            gateway.is_deaf = False
        self.finding = FINDINGS[0]
        self.store.publish(is_staged=False)
        self.clock.elapsed_s += TTL_S  # leases and back-off have run out
        self.seen.add(h.Calm())
        for _ in range(passes_after):
            self.clock.elapsed_s += 1.0
            await self.passes(self.controllers[0])
            self.note_pass()
        for gateway in self.gateways.values():
            gateway.end_requests()
            snapshot = gateway.gate.snapshot(self.clock.monotonic_s())
            self.seen.add(h.Left(snapshot.in_flight_requests, snapshot.in_flight_tokens))


class Wires:
    """Puts the world in the place of network, database and threads, for one test."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path) -> None:
        self.folder = folder
        self.library = Library()
        self.world: PushWorld | None = None

        async def inline(call: Callable[..., Any], *given: Any) -> Any:
            return call(*given)

        async def status(http: str, name: str, _url: str, **_: object) -> GatewayStatus:
            return await self._now.status(http, name)

        async def push(http: str, name: str, _url: str, body: bytes, **_: object) -> GatewayStatus:
            return await self._now.push(http, name, body)

        patch.setattr(asyncio, "to_thread", inline)
        patch.setattr(gateways, "status", status)
        patch.setattr(gateways, "push", push)
        patch.setattr(reconcile_store, "load", lambda *given: self._now.store.load(*given))
        patch.setattr(
            reconcile_store, "store_generations", lambda *given: self._now.store.store_generations(*given)
        )
        patch.setattr(reconcile_store, "record", lambda *given: self._now.store.record(*given))
        patch.setattr(assignments, "must_wait", self._must_wait)
        patch.setattr("os.fsync", lambda _descriptor: None)  # nobody pulls the plug here
        for module in (reconcile, lease):
            patch.setattr(module.log, "disabled", True)

    def _must_wait(self, *given: Any) -> set[str]:
        return must_wait(*given) if self._now.mutant.waits_for_shares else set()

    @property
    def _now(self) -> PushWorld:
        assert self.world is not None
        return self.world

    async def play(
        self, seed: int, mutant: Mutant = SOUND, *, events: int = 5, loses: bool = True
    ) -> History:
        """Return the history of one schedule."""
        self.world = PushWorld(seed, self.folder, self.library, mutant, loses=loses)
        return await self.world.run(events)
