"""Which modules are compiled, in one group: what the gate and the gateway run for every request.

A module belongs here if it runs for every request and its types are exact; it then calls its neighbours
directly, without looking names up. Compiled classes take no attributes that the class does not name and
cannot be patched, and a float where an int is declared is a TypeError. Nothing may depend on which way
it runs: the same file is what plain Python runs, so a module is added or taken out here and nowhere else.
"""

MODULES: tuple[str, ...] = (
    "fleet.accounts",
    "fleet.backlog",
    "fleet.bucket",
    "fleet.budget",
    "fleet.drain",
    "fleet.entry",
    "fleet.fairflows",
    "fleet.fairness",
    "fleet.fairqueue",
    "fleet.gate",
    "fleet.gate_replay",
    "fleet.lengths",
    "fleet.lines",
    "fleet.offers",
    "fleet.overbooking",
    "fleet.phases",
    "fleet.placement",
    "fleet.queue_bounds",
    "fleet.refusals",
    "fleet.replay_servers",
    "fleet.requeue",
    "fleet.retry_after",
    "fleet.tally",
    "fleet.tickets",
    "fleet.tierstate",
    "fleet.wait_estimate",
)
