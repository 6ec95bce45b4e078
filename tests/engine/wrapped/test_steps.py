"""How steps are cut, and what they share, changes nothing of what transformers' own code computes."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from benchmarks.processes.in_process import Loop
from contracts.ids import AttemptKey
from contracts.messages.job import Prompt
from contracts.messages.sampling import Limits, Sampling
from engine.executor import Executor
from engine.schedule.sequence import Sequence
from infra.config.engine import EngineConfig
from tests.engine.drive import answers
from tests.engine.test_golden import make_engine, make_executor
from tests.engine.wrapped.models import SMALL, WRAPPED
from tests.reference import Golden, build_model, golden, load_reference, make_prompts
from tests.variants import VARIANTS

NEW_TOKENS = 8
Models = dict[str, tuple[Path, list[Golden]]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Learned positions; windows beside full layers."""
    found = {}
    for name in ("gpt2", "cohere2"):
        config = WRAPPED[name]()
        directory = build_model(tmp_path_factory.mktemp(name) / "model", config)
        found[name] = directory, golden(directory, make_prompts([3, 16, 40, 65], config.vocab_size, 1), NEW_TOKENS)
    return found


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize(("chunk", "block_size", "ahead"), [(1, 8, True), (5, 64, False), (600, 16, True)])
@pytest.mark.parametrize("name", ["gpt2", "cohere2"])
def test_chunks_blocks_and_launching_ahead_change_nothing(
    name: str, chunk: int, block_size: int, ahead: bool, backend: str, models: Models
) -> None:
    directory, expected = models[name]
    executor = make_executor(directory, model_impl="transformers", block_size=block_size, cpu_backend=backend)
    assert answers(executor, expected, chunk=chunk, ahead=ahead) == [each.tokens for each in expected]


@pytest.mark.interpreted
def test_the_gpus_kernels_attend(tmp_path: Path) -> None:
    """Runs Triton's kernels in its interpreter, a decode beside a chunk; steps of decodes are not recorded."""
    config = AutoConfig.for_model("phi", **{**SMALL, "num_hidden_layers": 1})
    directory = build_model(tmp_path / "model", config)
    expected = golden(directory, make_prompts([3, 20], config.vocab_size), 2)
    executor = make_executor(directory, cpu_backend="triton", max_batch_tokens=16, kv_memory=1 << 20)
    assert executor.engine.decode_steps is None
    assert answers(executor, expected, stagger=1, chunk=13) == [each.tokens for each in expected]


def test_prompts_that_begin_alike_share_their_blocks(models: Models) -> None:
    """The second time all but the last token of each prompt comes from the cache, where other texts ran meanwhile."""
    directory, expected = models["cohere2"]
    config = EngineConfig(model=str(directory), device="cpu", dtype="fp32", kv_memory=4 << 20, max_batch_tokens=24)
    loop = Loop(Executor(make_engine(directory, max_batch_tokens=24)), config)
    for attempt in (1, 2):
        sequences = []
        for number, each in enumerate(expected):
            sequence = Sequence(
                AttemptKey(str(number), 0, attempt),
                gateway="test",
                prompt=Prompt(each.prompt, len(each.prompt)),
                deadline=float("inf"),
                sampling=Sampling(seed=0, temperature=0.0),
                limits=Limits(max_tokens=NEW_TOKENS),
            )
            loop.scheduler.add(sequence)
            sequences.append(sequence)
        while loop.turn():
            pass
        assert [[*each.tokens[each.prompt_tokens :]] for each in sequences] == [each.tokens for each in expected]
        cached = sum(each.cached_tokens for each in sequences)
        assert cached == 0 if attempt == 1 else cached > 100


def test_logits_of_every_row_are_the_models_own(tmp_path: Path) -> None:
    """Cohere scales them behind its head; a prompt's scores are made of all of them."""
    config = WRAPPED["cohere"]()
    directory = build_model(tmp_path / "model", config)
    (text,) = make_prompts([50], config.vocab_size)
    with torch.inference_mode():
        expected = load_reference(directory)(torch.tensor([text])).logits[0]
    found = Executor(make_engine(directory)).logits(text)
    assert float((found - expected).abs().max()) < 1e-4 * float(expected.abs().max())


def test_a_family_of_ours_can_be_asked_for_by_either_name(tmp_path: Path) -> None:
    """Either gives the same tokens. Workers that do not agree pass each other no KV: it is rounded differently."""
    config = VARIANTS["llama-biases"]()
    directory = build_model(tmp_path / "model", config)
    expected = golden(directory, make_prompts([5, 30, 44], config.vocab_size), NEW_TOKENS)
    fingerprints = set()
    for way in ("native", "transformers"):
        executor = make_executor(directory, model_impl=way)
        assert answers(executor, expected) == [each.tokens for each in expected]
        fingerprints.add(executor.engine.pool.spec.fingerprint())
    assert len(fingerprints) == 2
