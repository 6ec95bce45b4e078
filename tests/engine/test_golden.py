"""Tokens equal transformers' greedy tokens in fp32, whatever the architecture, the chunks and the company."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import RepetitionPenaltyLogitsProcessor

from contracts.messages.sampling import Sampling
from engine.executor import Executor
from engine.start.load import LoadedEngine, load_engine
from infra.config.engine import EngineConfig
from tests.engine.drive import answers, run, start
from tests.reference import Golden, build_model, golden, make_prompts
from tests.variants import VARIANTS

LENGTHS = [1, 2, 7, 15, 16, 17, 33, 47, 64, 97]
NEW_TOKENS = 12
BACKENDS = ("native", "torch")
"""Both serve on a CPU; the native operators need a C compiler."""


def make_engine(directory: Path, **changes: object) -> LoadedEngine:
    """Loads what a worker would, on a CPU in fp32 unless told otherwise."""
    settings: dict[str, object] = dict(
        model=str(directory), device="cpu", dtype="fp32", kv_memory=4 << 20, max_model_len=256
    )
    return load_engine(EngineConfig(**{**settings, **changes}), lambda stage, percent: None)  # type: ignore[arg-type]


def make_executor(directory: Path, **changes: object) -> Executor:
    """An executor that takes a step before the one before is collected, as on a GPU, wherever it runs."""
    return Executor(replace(make_engine(directory, **changes), launch_depth=2))


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_architecture_gives_the_references_tokens(variant: str, tmp_path: Path) -> None:
    """A ragged batch: prompts of many lengths in chunks of 13, joining one after the other, so that steps mix both."""
    config = VARIANTS[variant]()
    directory = build_model(tmp_path / variant, config, shard_size="100KB" if "biases" in variant else "5GB")
    vocabulary = config.get_text_config().vocab_size
    expected = golden(directory, make_prompts(LENGTHS, vocabulary), NEW_TOKENS)
    for backend in BACKENDS:
        executor = make_executor(directory, cpu_backend=backend)
        assert executor.engine.backend.name == backend
        assert answers(executor, expected, stagger=1, chunk=13) == [each.tokens for each in expected], backend


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Golden]]:
    """A model of two KV groups: some of its layers see 9 tokens."""
    config = VARIANTS["qwen3-layer-types"]()
    directory = build_model(tmp_path_factory.mktemp("windowed") / "model", config)
    return directory, golden(directory, make_prompts([3, 16, 40, 65], config.vocab_size, seed=1), 8)


@pytest.mark.parametrize("ahead", [False, True], ids=["collected at once", "launched ahead"])
@pytest.mark.parametrize("block_size", [8, 64])
@pytest.mark.parametrize("chunk", [1, 5, 600])
def test_chunks_blocks_and_launching_ahead_change_nothing(
    chunk: int, block_size: int, ahead: bool, windowed: tuple[Path, list[Golden]]
) -> None:
    directory, expected = windowed
    for backend in BACKENDS:
        executor = make_executor(directory, block_size=block_size, cpu_backend=backend)
        assert answers(executor, expected, chunk=chunk, ahead=ahead) == [each.tokens for each in expected], backend


@pytest.mark.parametrize("ahead", [False, True], ids=["collected at once", "launched ahead"])
def test_penalized_texts_give_the_tokens_of_the_formulas(ahead: bool, windowed: tuple[Path, list[Golden]]) -> None:
    """Words that come without penalties are bad ones here; a second run finds other texts under the same numbers."""
    directory, plain = windowed
    prompts = [each.prompt for each in plain]
    words = [tuple(each.tokens[:length]) for length, each in zip((1, 2, 3, 4), plain, strict=False)]

    def process(prompt: list[int], output: list[int], logits: Tensor) -> Tensor:
        logits = RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([prompt + output]), logits)
        for token in {*output}:
            logits[0, token] -= output.count(token) * 1.5 + 0.5
        for *before, last in words:
            if output[len(output) - len(before) :] == before:
                logits[0, last] = -torch.inf
        return logits

    penalized = Sampling(
        0,
        temperature=0.0,
        repetition_penalty=1.3,
        frequency_penalty=1.5,
        presence_penalty=0.5,
        bad_words=tuple(words),
    )
    expected = golden(directory, prompts, NEW_TOKENS, process)
    assert all(each.tokens[:8] != one.tokens for each, one in zip(expected, plain, strict=True))
    for backend in BACKENDS:
        executor = make_executor(directory, cpu_backend=backend)
        for runs in (expected, expected[::-1]):
            running = start(executor, [each.prompt for each in runs], NEW_TOKENS, samplings=[penalized] * len(runs))
            found = run(executor, running, NEW_TOKENS, chunk=13, ahead=ahead)
            assert found == [each.tokens for each in runs], backend


def test_long_prompts_and_large_batches(tmp_path: Path) -> None:
    config = VARIANTS["llama-llama3-rope"]()
    directory = build_model(tmp_path / "model", config)
    lengths = [1, 600, 333, *range(4, 120, 4)]
    expected = golden(directory, make_prompts(lengths, config.vocab_size, seed=2), 6)
    for backend in BACKENDS:
        executor = make_executor(directory, kv_memory=16 << 20, max_model_len=700, cpu_backend=backend)
        assert answers(executor, expected, chunk=100) == [each.tokens for each in expected], backend


@pytest.mark.parametrize("layer", range(4))
def test_a_zeroed_block_of_one_layer_is_noticed(layer: int, tmp_path: Path) -> None:
    """The mutation that shows that the comparisons above would see lost KV."""
    config = VARIANTS["llama"]()
    directory = build_model(tmp_path / "model", config)
    expected = golden(directory, make_prompts([40, 50, 60], config.vocab_size, seed=3), NEW_TOKENS)
    executor = make_executor(directory)
    running = start(executor, [each.prompt for each in expected], NEW_TOKENS)
    run(executor, running, 1, chunk=64)
    for each in running:
        executor.engine.pool.layers[layer][each.blocks[0][1]].zero_()
    got = run(executor, running, NEW_TOKENS)
    assert all(tokens != each.tokens for tokens, each in zip(got, expected, strict=True))
