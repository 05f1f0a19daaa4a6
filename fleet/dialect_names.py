"""Names on the wire, by engine and age: data, no code. Newest name first; the first present wins.

A field maps to the names it has had. Names are as the reader gives them (`vllm:` for every prefix
variant). Units: seconds, tokens, ratios 0..1. Prevents: a renamed metric reading as an idle node, and
two names of one quantity being added.
Sources: metric definitions of vLLM 0.8.5 to 0.33.0; sgl-project/sglang, observability/metrics_collector.py;
NVIDIA/TensorRT-LLM, tensorrt_llm/metrics/collector.py; triton-inference-server/server, docs/user_guide/
metrics.md and tensorrtllm_backend, README; llm-d/llm-d-inference-sim, docs/metrics.md. GPU exporters are in
`gpu_names`, routers in `router_names`. Only vLLM's names were also seen on running engines.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Names = tuple[str, ...]
#: A series of a family chosen by one label: (name, label, value).
Part = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one engine family names what we read.

    `engine_labels` tell engines of a page apart; series that differ only in `repeat_labels` repeat one
    value (take the largest); series that differ in any other label are parts (add them), unless one of
    them has `total_label` empty or absent: that one is the sum of the others. `busiest` names the counter
    of requests by model where a page's models are steps of one request, so that only one model is read.
    """

    name: str
    prefix: str
    engine_labels: Names
    gauges: dict[str, Names]
    counters: dict[str, Names]
    histograms: dict[str, Names]
    repeat_labels: Names = ()
    total_label: str = ""
    model_label: str = "model_name"
    busiest: str = ""
    parts: dict[str, Part] = field(default_factory=dict[str, Part])  # field -> the series that has it
    capacity: tuple[Part | str, ...] = ()  # gauges whose product is the KV capacity in tokens
    scale: dict[str, float] = field(default_factory=dict[str, float])  # histogram -> seconds a unit of it
    finished: str = ""  # counter with a `finished_reason` label
    finished_alone: dict[str, str] = field(default_factory=dict[str, str])  # reason -> counter without one
    marks: Names = ()  # any of these makes a page an engine's page


VLLM = Dialect(
    name="vllm",
    prefix="vllm:",
    engine_labels=("engine",),
    repeat_labels=("pid",),
    gauges={
        "running": ("vllm:num_requests_running",),
        "waiting": ("vllm:num_requests_waiting",),
        "kv_used_ratio": (
            "vllm:kv_cache_usage_perc",  # 0.9.2 and later
            "vllm:gpu_cache_usage_perc",  # to 0.11.2, hidden in 0.11
        ),
    },
    counters={
        "prompt_tokens": ("vllm:prompt_tokens_total",),
        "generation_tokens": ("vllm:generation_tokens_total",),
        "preemptions": ("vllm:num_preemptions_total",),
        "prefix_cache_hits": (
            "vllm:prefix_cache_hits_total",  # 0.9.2 and later, tokens
            "vllm:gpu_prefix_cache_hits_total",  # to 0.11.2; 0.8 counts blocks
        ),
        "prefix_cache_queries": (
            "vllm:prefix_cache_queries_total",
            "vllm:gpu_prefix_cache_queries_total",
        ),
    },
    histograms={
        "e2e_s": ("vllm:e2e_request_latency_seconds",),
        "ttft_s": ("vllm:time_to_first_token_seconds",),
        "itl_s": (
            "vllm:inter_token_latency_seconds",  # 0.10.2 and later
            "vllm:time_per_output_token_seconds",  # to 0.14.1, the same quantity
        ),
        "tpot_s": ("vllm:request_time_per_output_token_seconds",),  # per request: another quantity
        "queue_wait_s": ("vllm:request_queue_time_seconds",),
        "prefill_s": ("vllm:request_prefill_time_seconds",),
        "decode_s": ("vllm:request_decode_time_seconds",),
        "inference_s": ("vllm:request_inference_time_seconds",),
        "prompt_tokens": ("vllm:request_prompt_tokens",),
        "generation_tokens": ("vllm:request_generation_tokens",),
        "iteration_tokens": ("vllm:iteration_tokens_total",),  # a histogram in spite of its name
        "params_n": ("vllm:request_params_n",),
    },
    parts={
        "waiting_capacity": ("vllm:num_requests_waiting_by_reason", "reason", "capacity"),
        "prompt_tokens_computed": ("vllm:prompt_tokens_by_source_total", "source", "local_compute"),
    },
    finished="vllm:request_success_total",
    marks=(
        "vllm:cache_config_info",
        "vllm:request_success_total",
        "vllm:request_success",  # declared without samples: OpenMetrics, nothing finished yet
        "vllm:generation_tokens_total",
        "vllm:prompt_tokens_total",
        "vllm:e2e_request_latency_seconds_bucket",
        "vllm:time_to_first_token_seconds_bucket",
    ),
)

SGLANG = Dialect(
    name="sglang",
    prefix="sglang:",
    engine_labels=("dp_rank",),
    repeat_labels=("tp_rank", "pp_rank", "moe_ep_rank", "attn_cp_rank", "pid"),
    total_label="priority",  # with priority scheduling: one series a priority, and one for all
    capacity=("sglang:max_total_num_tokens",),
    gauges={
        "running": ("sglang:num_running_reqs",),
        "waiting": ("sglang:num_queue_reqs",),  # prefill and decode servers queue elsewhere too
        "kv_used_ratio": ("sglang:token_usage",),
    },
    counters={
        "prompt_tokens": ("sglang:prompt_tokens_total",),
        "generation_tokens": ("sglang:generation_tokens_total",),
        "preemptions": ("sglang:num_retracted_requests_total",),
        "prefix_cache_hits": ("sglang:cached_tokens_total",),
        "prefix_cache_queries": ("sglang:prompt_tokens_total",),
    },
    histograms={
        "e2e_s": ("sglang:e2e_request_latency_seconds",),
        "ttft_s": ("sglang:time_to_first_token_seconds",),
        "itl_s": ("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
        "tpot_s": ("sglang:request_time_per_output_token_seconds",),
        "queue_wait_s": ("sglang:queue_time_seconds",),
    },
    finished_alone={
        "finished": "sglang:num_requests_total",
        "abort": "sglang:num_aborted_requests_total",
    },
    marks=("sglang:num_running_reqs", "sglang:num_requests_total", "sglang:generation_tokens_total"),
)

TENSORRT_LLM = Dialect(
    name="tensorrt_llm",
    prefix="trtllm_",
    engine_labels=(),
    repeat_labels=("pid",),
    gauges={
        "running": ("trtllm_num_requests_running",),
        "waiting": ("trtllm_num_requests_waiting",),
        "kv_used_ratio": ("trtllm_kv_cache_utilization",),
    },
    counters={
        "prompt_tokens": ("trtllm_prompt_tokens_total",),
        "generation_tokens": ("trtllm_generation_tokens_total",),
        "prefix_cache_hits": ("trtllm_prompt_cached_tokens_total",),
        "prefix_cache_queries": ("trtllm_prompt_tokens_total",),
    },
    capacity=("trtllm_kv_cache_max_blocks", "trtllm_kv_cache_tokens_per_block"),
    histograms={
        "e2e_s": ("trtllm_e2e_request_latency_seconds",),
        "ttft_s": ("trtllm_time_to_first_token_seconds",),
        "tpot_s": ("trtllm_time_per_output_token_seconds",),  # per request, unlike vLLM's old name
        "queue_wait_s": ("trtllm_request_queue_time_seconds",),
        "prefill_s": ("trtllm_request_prefill_time_seconds",),
        "decode_s": ("trtllm_request_decode_time_seconds",),
        "inference_s": ("trtllm_request_inference_time_seconds",),
    },
    finished="trtllm_request_success_total",
    finished_alone={"error": "trtllm_request_error_total"},
    marks=("trtllm_num_requests_running", "trtllm_request_success_total"),
)

#: TensorRT-LLM 1.0 and 1.1: the same collector before its names had a prefix.
TENSORRT_LLM_BARE = Dialect(
    name="tensorrt_llm",
    prefix="kv_cache_utilization",
    engine_labels=(),
    repeat_labels=("pid",),
    gauges={"kv_used_ratio": ("kv_cache_utilization",)},
    counters={},
    histograms={
        "e2e_s": ("e2e_request_latency_seconds",),
        "ttft_s": ("time_to_first_token_seconds",),
        "tpot_s": ("time_per_output_token_seconds",),
        "queue_wait_s": ("request_queue_time_seconds",),
    },
    finished="request_success_total",
    marks=("kv_cache_utilization",),
)

TRITON = Dialect(
    name="triton",
    prefix="nv_inference_request_success",
    engine_labels=(),
    model_label="model",
    busiest="nv_inference_request_success",
    gauges={"waiting": ("nv_inference_pending_request_count",)},
    counters={},
    histograms={"ttft_s": ("nv_inference_first_response_histogram_ms",)},  # opt-in; first chunk
    scale={"ttft_s": 0.001},
    parts={  # of the TensorRT-LLM backend, 23.11 and later
        "running": ("nv_trt_llm_request_metrics", "request_type", "scheduled"),
        "waiting": ("nv_trt_llm_request_metrics", "request_type", "waiting"),
        "kv_used_ratio": ("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", "fraction"),
    },
    capacity=(
        ("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", "max"),
        ("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", "tokens_per"),
    ),
    finished_alone={
        "finished": "nv_inference_request_success",
        "error": "nv_inference_request_failure",
    },
    marks=("nv_inference_request_success",),
)

#: In the order in which a page is tried.
DIALECTS: tuple[Dialect, ...] = (TRITON, VLLM, SGLANG, TENSORRT_LLM, TENSORRT_LLM_BARE)

#: What the reader keeps of a page, as written there.
WANTED_PREFIXES: Names = (
    "vllm",
    "http_requests",
    "process_start_time_seconds",
    "ray_vllm",
    "kserve_vllm",
    "sglang",
    "ray_sglang",
    "trtllm_",
    "kv_cache_utilization",
    "e2e_request_latency_seconds",
    "time_to_first_token_seconds",
    "time_per_output_token_seconds",
    "request_queue_time_seconds",
    "request_success_total",
    "nv_inference_request_",
    "nv_inference_pending_",
    "nv_inference_first_",
    "nv_trt_llm_",
    "nv_gpu_",
    "DCGM_FI_",
)

#: Handlers whose answers are requests to an engine. The path may have a root in front of it.
INFERENCE_HANDLERS: Names = (
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/inference/v1/generate",
    "/generate",
    "/invocations",
)
