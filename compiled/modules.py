"""Which modules are compiled, in one group: what the gate and the gateway run for every request.

A module belongs here if it runs for every request and its types are exact; it then calls its neighbours
directly, without looking names up. Compiled classes take no attributes that the class does not name and
cannot be patched, and a float where an int is declared is a TypeError. Nothing may depend on which way
it runs: the same file is what plain Python runs, so a module is added or taken out here and nowhere else.
"""

MODULES: tuple[str, ...] = (
    "admission.alarm",
    "admission.ambiguity",
    "admission.answers",
    "admission.app",
    "admission.attempts",
    "admission.calls",
    "admission.clients",
    "admission.decision_log",
    "admission.disaggregation",
    "admission.endings",
    "admission.engine_link",
    "admission.estimate",
    "admission.http_server",
    "admission.identity",
    "admission.inbound",
    "admission.metrics",
    "admission.nodes",
    "admission.outbox",
    "admission.passage",
    "admission.passthrough",
    "admission.proxy",
    "admission.recalls",
    "admission.repeats",
    "admission.request_ids",
    "admission.request_lines",
    "admission.responses_call",
    "admission.running_journal",
    "admission.sse",
    "admission.state",
    "admission.upstream",
    "admission.usage_json",
    "admission.usage_spool",
    "admission.waiting",
    "admission.wire",
    "admission.worker",
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
    "fleet.outliers",
    "fleet.overbooking",
    "fleet.phases",
    "fleet.placement",
    "fleet.places",
    "fleet.queue_bounds",
    "fleet.refusals",
    "fleet.replay_servers",
    "fleet.requeue",
    "fleet.retry_after",
    "fleet.tally",
    "fleet.tickets",
    "fleet.tierstate",
    "fleet.turns",
    "fleet.wait_estimate",
)

#: Classes, by module, of which about one is made and one let go for each request.
REUSED: dict[str, tuple[str, ...]] = {
    "admission.calls": ("Prompt", "Call"),
    "admission.decision_log": ("Attempt", "Entry"),
    "admission.inbound": ("Inbound",),
    "admission.passage": ("Passage",),
    "admission.proxy": ("BodyBooking",),
    "admission.sse": ("Usage",),
    "admission.upstream": ("Exchange",),
    "fleet.offers": ("Request", "Ticket", "Lease", "Dispatch", "Queued", "Started"),
}

#: Those of them that nothing they refer to refers back to. The garbage collector need not know them; one
#: that stood in a cycle would never be freed. A waiting ticket does: it stands in a flow that it refers to.
ACYCLIC: tuple[str, ...] = (
    "Request", "Lease", "Dispatch", "Queued", "Started", "Prompt", "Call", "Attempt", "Entry",
    "BodyBooking", "Usage", "Exchange",
)  # fmt: skip
