"""Prompts are counted as the model's own tokenizer counts them, within a budget, from its folder only."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from admission import tokenizer_files
from admission.calls import Call, parse_call
from admission.chat_template import ChatTemplate
from admission.prompt_counts import MAX_BYTES, MAX_PENDING, PromptCounts
from admission.tokenizer_files import TokenizerFiles
from fleet.errors import InvalidInput
from fleet.messages import Assignment, parse_assignment
from tests.gateway_process import assignment

TEXT = "a request waits in a queue until a node has room for its tokens and then it is served "
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}</s>{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="module")
def trained() -> Tokenizer:
    """A byte-level BPE that puts <s> before every text."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([TEXT * 4, "0123456789 " * 9], trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", made.token_to_id("<s>"))]
    )
    return made


@pytest.fixture
def folder(tmp_path: Path, trained: Tokenizer) -> Path:
    model = tmp_path / "tokenizers" / "org" / "m"
    model.mkdir(parents=True)
    trained.save(str(model / "tokenizer.json"))
    config = {"chat_template": TEMPLATE, "bos_token": {"content": "<s>"}}
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path / "tokenizers"


def serving(*names: str) -> Assignment:
    document = assignment([])
    document["nodes"] = [{"name": "n", "pool": "p", "base_url": "http://n:1", "models": list(names)}]
    return parse_assignment(json.dumps(document).encode())


def call(endpoint: str, **body: Any) -> Call:
    return parse_call(endpoint, json.dumps({"model": "org/m", **body}).encode())


async def settled(files: TokenizerFiles, *models: str) -> None:
    """Follow the models, and wait until what there is to read is read: lines are answered in order."""
    files.follow(serving(*models))
    async with asyncio.timeout(60):
        while files._process is None:
            await asyncio.sleep(0.01)
    await files.count(call("completions", prompt="a"))


def counts_of(folder: Path, calls: list[Call], *, models: tuple[str, ...] = ("org/m",)) -> list[int | None]:
    async def run() -> list[int | None]:
        files = TokenizerFiles(folder)
        counts = PromptCounts(files, budget_s=60.0)
        await settled(files, *models)
        try:
            return [await counts.tokens(one) for one in calls]
        finally:
            await counts.close()

    return asyncio.run(run())


def test_a_text_is_counted_with_the_special_tokens_an_engine_adds(folder: Path, trained: Tokenizer) -> None:
    expected = 1 + len(trained.encode(TEXT, add_special_tokens=False).ids)
    other = 1 + len(trained.encode("zero", add_special_tokens=False).ids)
    found = counts_of(
        folder,
        [
            call("completions", prompt=TEXT),
            call("completions", prompt=TEXT, add_special_tokens=False),
            call("completions", prompt=[TEXT, "zero"]),
            call("embeddings", input=TEXT),
        ],
    )
    assert found == [expected, expected - 1, expected + other, expected]


def test_a_chat_is_counted_as_its_template_renders_it(folder: Path, trained: Tokenizer) -> None:
    parts = [{"type": "text", "text": "two"}, {"type": "text", "text": "parts {{ 1 + 1 }}"}]
    messages = [{"role": "user", "content": TEXT}, {"role": "user", "content": parts}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    text = f"<|user|>{TEXT}</s><|user|>two\nparts {{{{ 1 + 1 }}}}</s>{json.dumps(tools)}<|assistant|>"
    expected = len(trained.encode(text, add_special_tokens=False).ids)
    assert counts_of(folder, [call("chat", messages=messages, tools=tools)]) == [expected]


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("completions", {"prompt": [1, 2, 3]}),  # counted already
        ("completions", {"prompt": "x" * (MAX_BYTES + 1)}),
        ("chat", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}),
        ("chat", {"messages": [{"role": "user", "content": "a"}], "chat_template": "{{ messages }}"}),
        ("chat", {"messages": [{"role": "user", "content": "a"}], "continue_final_message": True}),
        ("responses", {"input": "a"}),
    ],
)
def test_what_cannot_be_counted_exactly_is_left_to_the_estimate(
    folder: Path, endpoint: str, body: dict[str, Any]
) -> None:
    assert counts_of(folder, [call(endpoint, **body)]) == [None]


@pytest.mark.parametrize("name", ["../outside", "org/../../outside", ".", "org/nobody", "broken"])
def test_a_name_leads_to_no_file_outside_and_a_broken_file_to_the_estimate(
    folder: Path, trained: Tokenizer, name: str
) -> None:
    outside = folder.parent / "outside"
    outside.mkdir()
    trained.save(str(outside / "tokenizer.json"))
    (folder / "broken").mkdir()
    (folder / "broken" / "tokenizer.json").write_text('{"version":"1.0","model":{}}')
    asked = parse_call("completions", json.dumps({"model": name, "prompt": TEXT}).encode())
    whole = call("completions", prompt=TEXT)
    missing, found = counts_of(folder, [asked, whole], models=(name, "org/m"))
    assert missing is None
    assert found is not None


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        TokenizerFiles(tmp_path / "nowhere")
    assert caught.value.field == "--tokenizers-dir"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{% for _ in range(10000000) %}x{% endfor %}",
        "{{ messages[0]['content'] / 0 }}",
        "{{ raise_exception('no') }}",
        "{{ messages.append(1) }}",
    ],
)
def test_a_template_reaches_nothing_and_its_faults_are_no_count(source: str) -> None:
    assert ChatTemplate(source, {}).render({"messages": [{"role": "user", "content": "a"}]}) is None


# -- the budget -------------------------------------------------------------------------------------


class Slow:
    """A source that counts when it is told to."""

    basis = "slowly"

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.asked = 0

    def is_for(self, call: Call) -> bool:
        return True

    async def count(self, call: Call) -> int | None:
        self.asked += 1
        await self.go.wait()
        return 41 + self.asked

    async def close(self) -> None:
        self.go.set()


def test_what_comes_late_is_estimated_now_and_known_at_the_next_try() -> None:
    async def run() -> None:
        source = Slow()
        counts = PromptCounts(source, budget_s=0.001)
        one = call("completions", prompt="a", temperature=0.5)
        assert await counts.tokens(one) is None
        assert await counts.tokens(one) is None  # not asked for twice
        source.go.set()
        while counts._running:
            await asyncio.sleep(0)
        assert await counts.tokens(call("completions", prompt="a", temperature=0.7)) == 42
        assert source.asked == 1
        assert counts.results == {"late": 2, "cached": 1}
        await counts.close()

    asyncio.run(run())


def test_a_queue_never_forms_and_nothing_is_left_running() -> None:
    async def run() -> None:
        counts = PromptCounts(Slow(), budget_s=0.001)
        for number in range(MAX_PENDING + 5):
            assert await counts.tokens(call("completions", prompt=f"p{number}")) is None
        assert counts.results == {"late": MAX_PENDING, "busy": 5}
        await counts.close()
        assert not counts._running

    asyncio.run(run())


def test_a_tokenizer_that_dies_is_missed_by_nobody_and_comes_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_files, "AGAIN_S", 0.05)
    monkeypatch.setenv("RHODECK_GATEWAY_ADMIN_TOKEN", "canary-of-the-gateway")

    async def run() -> None:
        files = TokenizerFiles(folder)
        one = call("completions", prompt=TEXT)
        await settled(files, "org/m")
        assert files.is_for(one)
        first = files._process
        assert first is not None
        environment = Path(f"/proc/{first.pid}/environ").read_bytes()
        assert b"canary-of-the-gateway" not in environment
        before = await files.count(one)
        first.kill()
        async with asyncio.timeout(60):
            while files._process is first:
                await asyncio.sleep(0)
            assert await files.count(one) is None  # away: the estimate holds
            while not files.is_for(one):
                await asyncio.sleep(0.01)
        assert await files.count(one) == before is not None
        await files.close()
        assert files._process is None

    asyncio.run(run())


def test_tokenising_leaves_the_loop_to_others(folder: Path) -> None:
    """The loop turns while a long text is counted."""

    async def run() -> tuple[int | None, int]:
        files = TokenizerFiles(folder)
        await settled(files, "org/m")
        counts = PromptCounts(files, budget_s=60.0)
        turns = 0

        async def turn() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        turning = asyncio.ensure_future(turn())
        found = await counts.tokens(call("completions", prompt=TEXT * (MAX_BYTES // len(TEXT))))
        turning.cancel()
        await counts.close()
        return found, turns

    found, turns = asyncio.run(run())
    assert found is not None
    assert turns > 10
