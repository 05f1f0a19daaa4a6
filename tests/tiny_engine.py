"""A real vLLM on two CPU cores with a two-layer random model, for tests marked `real_engine`.

Finds an interpreter that has vLLM, writes a model folder (no weights: they are random), starts the server
and stops it with all its processes. Times are seconds. Prevents: a test of the reader against pages that
only we wrote.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import httpx

PYTHON_VARIABLE = "RHODECK_TEST_VLLM_PYTHON"
MISSING = (
    f"no vLLM: neither this interpreter has it nor does {PYTHON_VARIABLE} name one that has "
    "(docs/real_engine.md)"
)
MODEL = "tiny"
MAX_MODEL_LEN = 1024
MAX_NUM_SEQS = 4
START_TIMEOUT_S = 400.0
STOP_TIMEOUT_S = 60.0

#: The smallest Llama the CPU kernels take: head size 32, 128 tokens a KV block.
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "unk_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

#: Runs in the engine's interpreter: a byte-level BPE trained on a few sentences.
TOKENIZER = """
import sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
trainer = trainers.BpeTrainer(
    vocab_size=512,
    special_tokens=["<unk>", "<s>", "</s>"],
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
)
text = "a request waits in a queue until a node has room for its tokens and then it is served "
tokenizer.train_from_iterator([text * 4, text.upper(), "0123456789 " * 9], trainer)
fast = PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
)
fast.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
fast.save_pretrained(sys.argv[1])
"""


def engine_python() -> str | None:
    """Return an interpreter that has vLLM, or None. A named one that does not exist is an error."""
    named = os.environ.get(PYTHON_VARIABLE)
    if named:
        assert os.access(named, os.X_OK), f"{PYTHON_VARIABLE}={named} cannot be executed"
        return named
    return sys.executable if importlib.util.find_spec("vllm") is not None else None


def quiet_environment(home: Path) -> dict[str, str]:
    """Return the environment of an engine that asks nobody for anything, and of one thread."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LD_LIBRARY_PATH") if name in os.environ}
    return kept | {
        "HOME": str(home),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": "1",
    }


def make_model(python: str, folder: Path) -> Path:
    """Write a model folder: configuration and tokenizer."""
    model = folder / "tiny-llama"
    model.mkdir(parents=True)
    subprocess.run(
        [python, "-c", TOKENIZER, str(model)],
        env=quiet_environment(folder),
        check=True,
        timeout=300,
        capture_output=True,
    )
    (model / "config.json").write_text(json.dumps(CONFIG))
    return model


@dataclass
class TinyEngine:
    """A running server."""

    port: int
    log: Path
    process: subprocess.Popen[bytes]
    start_s: float  # from the start of the process to /health

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def metrics_url(self) -> str:
        return f"{self.base_url}/metrics"


@contextlib.contextmanager
def running_engine(python: str, folder: Path, *flags: str) -> Generator[TinyEngine]:
    """Start the server with an idle priority, wait until it answers, stop it at the end."""
    model, port, log = make_model(python, folder), free_port(), folder / "engine.log"
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", MODEL, "--load-format", "dummy", "--enforce-eager"]
    command += ["--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", str(MAX_NUM_SEQS)]
    command += ["--host", "127.0.0.1", "--port", str(port), *flags]
    begun = time.monotonic()
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["nice", "-n", "5", *command],
            env=quiet_environment(folder),
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        _wait_until_healthy(process, port, log)
        yield TinyEngine(port, log, process, time.monotonic() - begun)
    finally:
        stop(process)


def _wait_until_healthy(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + START_TIMEOUT_S
    with httpx.Client(trust_env=False, timeout=5) as client:
        while time.monotonic() < until:
            ended = process.poll()
            assert ended is None, f"the engine ended with code {ended}:\n{log.read_text()[-3_000:]}"
            with contextlib.suppress(httpx.TransportError):
                if client.get(f"http://127.0.0.1:{port}/health").status_code == 200:
                    return
            threading.Event().wait(0.25)
    raise AssertionError(f"the engine did not start:\n{log.read_text()[-3_000:]}")


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and everything in its session."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(STOP_TIMEOUT_S)


def free_port() -> int:
    """Return a port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
