"""The engine's law compiled: steps of many engines in one order of time, up to the next answer that ends.

Owns: what one step of `fleet.engine` does to slots, KV blocks and tokens, in arrays instead of objects,
with the same sums in the same order: the times are equal to the last bit. Times are seconds, sizes tokens
or blocks. Continuous batching with chunked prefill only; requests must fit their engine. Plain Python with
NUMBA_DISABLE_JIT=1. Prevents: a month that needs 400 million steps in Python, and a faster model of an
engine that is another engine.

A step that only decodes costs a few comparisons; places are scanned when a request comes, joins or ends.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fleet.kernels import compiled

#: Places in `limits`, whole numbers of the profile, and in `costs`, its seconds and ratios.
MAX_SEQS, BUDGET, BLOCKS, BLOCK_SIZE, BY_PRIORITY = 0, 1, 2, 3, 4
ALPHA, BETA, BETA_PAST, GAMMA, KAPPA, PREFIX_HIT, KNEE = 0, 1, 2, 3, 4, 5, 6
#: Columns of `engines`, one row each.
STARTED, COMMITTED, DECODING, RUNNING, PREFILLING, QUEUED, USED = 0, 1, 2, 3, 4, 5, 6
NEXT_FINISH, JOINED, CAME, KV_OFFSET, PREEMPTED, ENGINE_COLUMNS = 7, 8, 9, 10, 11, 12
#: Columns of `places`, one row for each request an engine may hold, running or waiting.
STATE, NAME, ORDER, RANK, PROMPT, OUTPUT, KV_AT_JOIN, LEFT = 0, 1, 2, 3, 4, 5, 6, 7
PRODUCED, JOIN_STEP, FINISH_STEP, ADMITTED, CHUNK, IS_KNOWN, PLACE_COLUMNS = 8, 9, 10, 11, 12, 13, 14
FREE, WAITING, PREFILL, DECODE = 0, 1, 2, 3
NEVER_STEP = 1 << 60


@compiled
def blocks_for(tokens: int, size: int) -> int:
    """Return the blocks that hold so many tokens."""
    return -(-tokens // size)


@compiled
def growth_slot(place: Any, size: int) -> int:
    """Return the step number modulo block size at which a decoding sequence needs a block."""
    return (place[JOIN_STEP] + 1 - place[KV_AT_JOIN]) % size


@compiled
def leave(limits: Any, engine: Any, place: Any, grows: Any, is_grown: int) -> None:
    """Give up slot and blocks. `is_grown`: the step begun last has already given it its block."""
    size, held = limits[BLOCK_SIZE], place[KV_AT_JOIN]
    engine[RUNNING] -= 1
    if place[STATE] == DECODE:
        place[PRODUCED] += engine[COMMITTED] - place[JOIN_STEP]
        held += engine[STARTED] - place[JOIN_STEP] - (1 - is_grown)
        engine[DECODING] -= 1
        engine[KV_OFFSET] -= place[KV_AT_JOIN] - place[JOIN_STEP]
        grows[growth_slot(place, size)] -= 1
    else:
        engine[PREFILLING] -= 1
    engine[USED] -= blocks_for(held, size)


@compiled
def find_next_finish(engine: Any, places: Any) -> None:
    """Work out the step at whose end the next answer ends."""
    engine[NEXT_FINISH] = NEVER_STEP
    for i in range(places.shape[0]):
        if places[i, STATE] == DECODE and places[i, FINISH_STEP] < engine[NEXT_FINISH]:
            engine[NEXT_FINISH] = places[i, FINISH_STEP]


@compiled
def victim_of(limits: Any, places: Any) -> int:
    """Return who is preempted: the least urgent that came last, or whoever was admitted last."""
    found = -1
    for i in range(places.shape[0]):
        if places[i, STATE] != PREFILL and places[i, STATE] != DECODE:
            continue
        if found < 0:
            found = i
        elif limits[BY_PRIORITY]:
            mine, best = places[i], places[found]
            if (mine[RANK], mine[ORDER]) > (best[RANK], best[ORDER]):
                found = i
        elif places[i, ADMITTED] > places[found, ADMITTED]:
            found = i
    return found


@compiled
def grow_decoders(limits: Any, engine: Any, places: Any, grows: Any) -> int:
    """Give each decoder that crosses a block boundary its block. Return how many were preempted."""
    preempted, slot = 0, engine[STARTED] % limits[BLOCK_SIZE]
    while engine[RUNNING] > 0 and grows[slot] > limits[BLOCKS] - engine[USED]:
        victim = places[victim_of(limits, places)]
        leave(limits, engine, victim, grows, 0)
        victim[STATE], victim[CHUNK] = WAITING, 0
        engine[QUEUED] += 1
        preempted += 1
    if preempted:
        engine[PREEMPTED] += preempted
        find_next_finish(engine, places)
    engine[USED] += grows[slot]
    return preempted


@compiled
def chunk_prompts(engine: Any, places: Any, budget: int) -> int:
    """Give the budget to running prompts in order of admission; return what is left of it."""
    last = -1
    for _ in range(engine[PREFILLING]):
        found = -1
        for i in range(places.shape[0]):
            is_next = places[i, STATE] == PREFILL and places[i, ADMITTED] > last
            if is_next and (found < 0 or places[i, ADMITTED] < places[found, ADMITTED]):
                found = i
        last = places[found, ADMITTED]
        places[found, CHUNK] = max(0, min(places[found, LEFT], budget))
        budget -= places[found, CHUNK]
    return budget


@compiled
def head_of(places: Any) -> int:
    """Return the place of who waits first: by rank, then by coming."""
    found = -1
    for i in range(places.shape[0]):
        if places[i, STATE] == WAITING:
            mine, best = places[i], places[found]
            if found < 0 or (mine[RANK], mine[ORDER]) < (best[RANK], best[ORDER]):
                found = i
    return found


@compiled
def admit(limits: Any, costs: Any, engine: Any, places: Any, budget: int) -> int:
    """Move waiting sequences into slots until a slot, a block or the budget ends; return what is left."""
    size = limits[BLOCK_SIZE]
    while engine[QUEUED] > 0 and budget > 0 and engine[RUNNING] < limits[MAX_SEQS]:
        place = places[head_of(places)]
        prefill = place[PROMPT] + place[PRODUCED]
        blocks = blocks_for(prefill, size)
        if blocks > limits[BLOCKS] - engine[USED]:
            break
        engine[QUEUED] -= 1
        engine[USED] += blocks
        place[STATE], place[KV_AT_JOIN], place[LEFT] = PREFILL, prefill, prefill
        if not place[IS_KNOWN]:
            place[IS_KNOWN] = 1
            hit = min(int(place[PROMPT] * costs[PREFIX_HIT]), place[PROMPT] - 1) // size * size
            place[LEFT] -= hit
        engine[JOINED] += 1
        place[ADMITTED] = engine[JOINED]
        engine[RUNNING] += 1
        engine[PREFILLING] += 1
        place[CHUNK] = min(place[LEFT], budget)
        budget -= place[CHUNK]
    return budget


@compiled
def begin(
    limits: Any, costs: Any, engine: Any, places: Any, grows: Any, step_ends_s: Any, e: int, at_s: float
) -> None:
    """Schedule engine `e`'s step that starts at `at_s`, or let it rest."""
    if engine[RUNNING] == 0 and engine[QUEUED] == 0:
        step_ends_s[e] = np.inf
        return
    engine[STARTED] += 1
    preempted = grow_decoders(limits, engine, places, grows)
    budget = limits[BUDGET] - engine[DECODING]
    left = budget
    if engine[PREFILLING] > 0:
        left = chunk_prompts(engine, places, left)
    if engine[QUEUED] > 0 and not (preempted and engine[RUNNING] > 0):
        left = admit(limits, costs, engine, places, left)
    step_ends_s[e] = at_s + step_s(costs, engine, budget - left)


@compiled
def step_s(costs: Any, engine: Any, prompt_tokens: int) -> float:
    """Return the seconds that the step begun takes."""
    decoding = engine[DECODING]
    kv_tokens = 0
    if costs[KAPPA] > 0:
        kv_tokens = engine[KV_OFFSET] + decoding * engine[STARTED]
    if decoding <= costs[KNEE]:
        decode_s = costs[BETA] * decoding
    else:
        decode_s = costs[BETA] * costs[KNEE] + costs[BETA_PAST] * (decoding - costs[KNEE])
    return costs[ALPHA] + decode_s + costs[GAMMA] * prompt_tokens + costs[KAPPA] * kv_tokens


@compiled
def decode_on(limits: Any, costs: Any, engine: Any, grows: Any, end_s: float, limit_s: float) -> float:
    """Make steps that only decode, as long as nobody ends, wants in or is short of a block.

    Returns when the step in flight then ends. Nothing is scanned: this is where most steps are made.
    """
    size, free = limits[BLOCK_SIZE], limits[BLOCKS] - engine[USED]
    constant_s = step_s(costs, engine, 0)
    while end_s <= limit_s and engine[NEXT_FINISH] > engine[STARTED]:
        grown = grows[(engine[STARTED] + 1) % size]
        if grown > free:
            break
        free -= grown
        engine[USED] += grown
        engine[COMMITTED] = engine[STARTED]
        engine[STARTED] += 1
        end_s += constant_s if costs[KAPPA] == 0 else step_s(costs, engine, 0)
    return end_s


@compiled
def commit(
    limits: Any,
    engine: Any,
    places: Any,
    firsts_s: Any,
    grows: Any,
    end_s: float,
    ended: Any,
    ended_first_s: Any,
) -> int:
    """Book the step that ends now. Return how many answers ended; `ended` has their names."""
    engine[COMMITTED] = engine[STARTED]
    count = 0
    if engine[NEXT_FINISH] == engine[COMMITTED]:
        for i in range(places.shape[0]):
            if places[i, STATE] == DECODE and places[i, FINISH_STEP] == engine[COMMITTED]:
                leave(limits, engine, places[i], grows, 1)
                places[i, STATE] = FREE
                ended[count], ended_first_s[count] = places[i, NAME], firsts_s[i]
                count += 1
        find_next_finish(engine, places)
    if engine[PREFILLING] == 0:
        return count
    for i in range(places.shape[0]):
        if places[i, STATE] != PREFILL:
            continue
        places[i, LEFT] -= places[i, CHUNK]
        places[i, CHUNK] = 0
        if places[i, LEFT] > 0:
            continue
        if places[i, PRODUCED] == 0:
            firsts_s[i] = end_s
        places[i, PRODUCED] += 1
        if places[i, PRODUCED] >= places[i, OUTPUT]:
            leave(limits, engine, places[i], grows, 1)
            places[i, STATE] = FREE
            ended[count], ended_first_s[count] = places[i, NAME], firsts_s[i]
            count += 1
        else:
            join(limits, engine, places[i], grows)
    return count


@compiled
def join(limits: Any, engine: Any, place: Any, grows: Any) -> None:
    """Enter the decode batch of the next step."""
    place[STATE] = DECODE
    place[JOIN_STEP] = engine[COMMITTED]
    place[FINISH_STEP] = engine[COMMITTED] + place[OUTPUT] - place[PRODUCED]
    engine[PREFILLING] -= 1
    engine[DECODING] += 1
    engine[KV_OFFSET] += place[KV_AT_JOIN] - place[JOIN_STEP]
    grows[growth_slot(place, limits[BLOCK_SIZE])] += 1
    engine[NEXT_FINISH] = min(engine[NEXT_FINISH], place[FINISH_STEP])


@compiled
def run_until(
    until_s: float,
    limits: Any,
    costs: Any,
    engines: Any,
    places: Any,
    firsts_s: Any,
    grows: Any,
    step_ends_s: Any,
    ended: Any,
    ended_first_s: Any,
) -> Any:
    """Run every step that ends at or before `until_s`, but stop where an answer ends.

    Returns how many ended there, which engine's, and when; its next step is begun. (0, -1, …): none did.
    """
    while True:
        e, second_s = 0, np.inf
        for other in range(1, step_ends_s.size):
            if step_ends_s[other] < step_ends_s[e]:
                e, second_s = other, step_ends_s[e]
            elif step_ends_s[other] < second_s:
                second_s = step_ends_s[other]
        limit_s = min(until_s, second_s)
        if step_ends_s[e] > until_s or step_ends_s[e] == np.inf:
            return 0, -1, until_s
        engine, mine, grown = engines[e], places[e], grows[e]
        while True:
            if engine[PREFILLING] == 0 and engine[QUEUED] == 0:
                end_s = step_ends_s[e]
                step_ends_s[e] = decode_on(limits, costs, engine, grown, end_s, limit_s)
                if step_ends_s[e] > limit_s:
                    break
            end_s = step_ends_s[e]
            count = commit(limits, engine, mine, firsts_s[e], grown, end_s, ended, ended_first_s)
            begin(limits, costs, engine, mine, grown, step_ends_s, e, end_s)
            if count:
                return count, e, end_s
            if step_ends_s[e] > limit_s or step_ends_s[e] == np.inf:
                break


@compiled
def submit(
    now_s: float,
    e: int,
    name: int,
    prompt: int,
    output: int,
    rank: int,
    limits: Any,
    costs: Any,
    engines: Any,
    places: Any,
    grows: Any,
    step_ends_s: Any,
) -> int:
    """Queue a request in engine `e`, which is run up to `now_s`. Return its place; -1: all are taken."""
    engine, found = engines[e], -1
    for i in range(places.shape[1]):
        if places[e, i, STATE] == FREE:
            found = i
            break
    if found < 0:
        return -1
    place = places[e, found]
    place[:] = 0
    engine[CAME] += 1
    place[STATE], place[NAME], place[ORDER] = WAITING, name, engine[CAME]
    place[PROMPT], place[OUTPUT] = prompt, output
    if limits[BY_PRIORITY]:
        place[RANK] = rank
    engine[QUEUED] += 1
    if step_ends_s[e] == np.inf:
        begin(limits, costs, engine, places[e], grows[e], step_ends_s, e, now_s)
    return found
