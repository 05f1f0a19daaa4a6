"""The inputs of sizing: the model's file or a bundled one, the GPUs, the requests. Kept in the address.

Prevents: an answer that cannot be shared, and an uploaded file of any size.
"""

from __future__ import annotations

import streamlit as st

from control.model_config_files import bundled, config_bytes
from dashboard import components
from fleet.gpus import GPUS, gpu
from fleet.model_config import read_model_config
from fleet.sizing import Demand, Sizing, size
from fleet.sizing_flags import BATCHED_TOKENS, Aim
from fleet.sizing_layout import EngineSettings

_AIMS = {Aim.BALANCE: "balance", Aim.TAIL: "short gaps", Aim.COST: "cost"}


def asked() -> Sizing:
    """Draw the inputs and return the answer. Raises InvalidInput for what cannot be."""
    left, middle, right = components.places(3, min_px=250)
    with left.container(border=True, height="stretch"):
        st.markdown("**Model and GPUs**")
        names = bundled()
        name = _pick("Bundled model", names, "model", names.index("llama-3.1-70b"))
        file = st.file_uploader(
            "Or its config.json",
            type="json",
            key="sizing_file",
            max_upload_size=2,
            help="Beside the weights",
        )
        card = _pick("GPU", list(GPUS), "gpu", list(GPUS).index("h100-sxm"))
        gpus = _whole("GPUs", "gpus", 8, 1024)
    with middle.container(border=True, height="stretch"):
        st.markdown("**Requests**")
        prompt = _whole("Prompt tokens, typical", "prompt", 2000, 50_000_000)
        output = _whole("Output tokens, typical", "output", 300, 50_000_000)
        first_ms = _whole("First token within, ms", "ttft_ms", 500, 3_600_000)
        token_ms = _whole("Every further token within, ms", "token_ms", 50, 3_600_000)
    with right.container(border=True, height="stretch"):
        st.markdown("**Engine**")
        context = _whole("Longest request, tokens", "context", 32_768, 50_000_000)
        seats = _whole("Sequences at once, at most", "seqs", 256, 100_000)
        kv = _pick("KV cache", ["auto", "fp8"], "kv", 0)
        aim = Aim(_pick("Aim", [a.value for a in _AIMS], "aim", 0))
        percent = _whole("GPU memory to use, percent", "memory", 90, 100)
    settings = EngineSettings(
        memory_ratio=percent / 100,
        kv_bits=8 if kv == "fp8" else 16,
        max_context=context,
        batched_tokens=BATCHED_TOKENS[aim],
        max_seqs=seats,
    )
    content = config_bytes(name) if file is None else file.getvalue()
    demand = Demand(prompt, output, first_ms / 1000, token_ms / 1000)
    return size(read_model_config(content), gpu(card), gpus, settings, demand)


def _pick(label: str, options: list[str], name: str, index: int) -> str:
    found = st.selectbox(label, options, index=index, key=f"sizing_{name}", bind="query-params")
    return str(found)


def _whole(label: str, name: str, value: int, high: int) -> int:
    found = st.number_input(label, 1, high, value, 1, key=f"sizing_{name}", bind="query-params")
    return int(found or value)
