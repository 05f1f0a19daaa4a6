"""One round of the fleet of the benchmark of pages: each column as SQL over node or tenant, and second.

`n` is the number of a node or tenant, `t` the round's second (Unix). Every figure is a function of the two,
so each run of the benchmark holds the same. Prevents: pages that are fast because all rows are alike.
"""

from __future__ import annotations

from control.tables_rollup import ENGINE
from fleet.outcomes import Tier

PERIOD_S = 10
POOLS = 4
GATEWAYS = 4
TIERS = tuple(tier.value for tier in Tier)
EDGES = [0.001 * 1.6**step for step in range(21)]
#: 22 counts that move with node and second.
COUNTS = (
    "ARRAY[0,0,1,2,4 + (n + t / 10) % 5,9,14,18 + (n + t / 10) % 7,16,11,7,4,2,1,1,0,0,0,0,0,0,0]::bigint[]"
)
NODE = "'node-' || lpad(n::text, 4, '0')"
POOL = f"'pool-' || n % {POOLS}"
TENANT = "'tenant-' || lpad(n::text, 3, '0')"
TIER = f"(ARRAY{list(TIERS)})[1 + n % {len(TIERS)}]"
AT = "to_timestamp(t)"
RHO = "0.55 + 0.35 * sin(t / 1800.0 + n * 0.13)"

SAMPLE = {
    "node": NODE, "engine": "'0'", "model": f"'model-' || n % {POOLS}", "counted_in": POOL,
    "covered_s": f"{PERIOD_S}::float8", "fetch_s": "0.02 + 0.00005 * n",
    "arrivals": "20 + (n + t / 10) % 11",
    "completed": "20 + (n + t / 10) % 9", "errors": "0", "aborted": "0",
    "prompt_tokens": "10000 + (n * 31 + t) % 4000", "prompt_tokens_computed": "8000 + (n * 31 + t) % 3000",
    "generation_tokens": "6000 + (n * 17 + t) % 2500", "preemptions": "(n + t / 10) % 50 / 49",
    "prefix_cache_hits": "2000", "prefix_cache_queries": "10000", "running": "40 + (n + t / 10) % 20",
    "waiting": "(n + t / 10) % 6", "waiting_capacity": "(n + t / 10) % 3",
    "kv_used_ratio": "0.5 + 0.4 * sin(t / 900.0 + n)", "kv_capacity_tokens": "400000",
    "ttft_sum_s": "5.0", "itl_sum_s": "180.0", "queue_wait_sum_s": "2.0", "e2e_sum_s": "300.0",
    "inference_sum_s": "290.0", "inference_count": "20", "prefill_sum_s": "10.0", "prefill_count": "20",
    "decode_sum_s": "280.0", "decode_count": "20", "prompt_len_sum_tokens": "10000",
    "output_len_sum_tokens": "6000", "step_sum_tokens": "16000",
}  # fmt: skip
for _prefix in ENGINE.histograms:
    SAMPLE |= {f"{_prefix}_edges": "1", f"{_prefix}_counts": COUNTS}
VERDICT = {
    "rho": RHO, "rho_low": f"{RHO} - 0.05", "rho_high": f"{RHO} + 0.06", "grade": "'B'",
    "method": "'curve'", "binding": "'slots'", "service_rate": "4.2",
    "service_rate_low": "4.0", "service_rate_high": "4.5",
    "output_tokens_rate": "650.0", "arrival_rate": f"4.2 * ({RHO})", "throughput": f"4.2 * ({RHO})",
    "flow_balance": "1.0", "flow_balance_z": "0.3", "saturated": "false", "headroom_rps": "1.2",
    "running": "40 + (n + t / 10) % 20", "waiting": "(n + t / 10) % 6",
    "kv_used_ratio": "0.5 + 0.4 * sin(t / 900.0 + n)", "partial": "false",
    "detail": """'{"explanation": ["rho = lambda / mu = 2.6 / 4.2 = 0.62"], "missing_nodes": []}'::jsonb""",
}  # fmt: skip
FLOW = {
    "tenant": TENANT, "tier": TIER, "covered_s": f"{PERIOD_S}::float8", "offered": "12 + (n + t / 10) % 7",
    "repeated": "0", "dispatched": "11 + (n + t / 10) % 7",
    "outcomes": """('{"completed": ' || 11 + (n + t / 10) % 7 || ', "rejected_quota_rate": 1}')::jsonb""",
    "prompt_tokens": "6000 + (n * 13 + t) % 900", "output_tokens": "4000 + (n * 7 + t) % 700",
    "queued_requests": "n % 3", "in_flight_requests": "10 + n % 9", "in_flight_tokens": "9000",
    "queue_wait_edges": "1", "queue_wait_counts": COUNTS, "queue_wait_sum_s": "2.0", "ttft_edges": "1",
    "ttft_counts": COUNTS, "ttft_sum_s": "5.0",
}  # fmt: skip
