"""Names on the wire, by engine and age: data, no code. Newest name first; the first present wins.

A field maps to the names it has had. Names are as the reader gives them (`vllm:` for every prefix
variant). Units: seconds, tokens, ratios 0..1. Prevents: a renamed metric reading as an idle node, and
two names of one quantity being added.
Source: metric definitions of vLLM 0.8.5 to 0.33.0, SGLang 0.5.23, TensorRT-LLM 1.x, Triton, dcgm-exporter.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one engine family names what we read.

    `engine_labels` tell engines of a page apart; series that differ only in `repeat_labels` repeat one
    value (take the largest); series that differ in any other label are parts (add them).
    """

    name: str
    prefix: str
    engine_labels: Names
    gauges: dict[str, Names]
    counters: dict[str, Names]
    histograms: dict[str, Names]
    repeat_labels: Names = ()
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
    gauges={
        "running": ("sglang:num_running_reqs",),
        "waiting": ("sglang:num_queue_reqs",),
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
    },
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

DIALECTS: tuple[Dialect, ...] = (VLLM, SGLANG, TENSORRT_LLM)

TRITON_SUCCESS = "nv_inference_request_success"
TRITON_FAILURE = "nv_inference_request_failure"

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
    "nv_inference_request_",
    "DCGM_",
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
