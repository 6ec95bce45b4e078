"""In fp32 a request's logits are the same bits at every token of its answer, whatever happens around it.

The shape is that of a 135M model, but for the number of layers: its products and heads are what threads divide. Of
experts, company decides how many rows each has.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, Qwen3MoeConfig

from engine.backends.base import OnLayer
from engine.executor import Executor
from engine.plan import StepPlan
from tests.engine.drive import Running, collect, next_plan, start
from tests.engine.test_golden import make_engine
from tests.reference import build_model, make_prompts
from tests.variants import VARIANTS

NEW_TOKENS = 6
PROMPT_TOKENS = 150
VOCABULARY = 1000
SMALL: dict[str, Any] = dict(
    vocab_size=VOCABULARY,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=2,
    num_attention_heads=9,
    num_key_value_heads=3,
    head_dim=64,
    max_position_embeddings=1024,
    initializer_range=0.1,
    bos_token_id=None,
    eos_token_id=None,
)


def of_family(variant: str) -> Any:
    """Returns the config of a small model of a family, with this file's vocabulary."""
    config = VARIANTS[variant]()
    config.vocab_size = VOCABULARY
    return config


MODELS = {
    "dense": LlamaConfig(**SMALL),
    "experts": Qwen3MoeConfig(**SMALL, num_experts=12, num_experts_per_tok=3, moe_intermediate_size=200),
    "windows": of_family("mistral-window"),
    "latent vectors": of_family("deepseek-v3"),
}


@pytest.fixture(scope="module", params=MODELS)
def model(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    return build_model(tmp_path_factory.mktemp("invariance") / "model", MODELS[request.param])


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class Watched:
    """An executor whose logits are kept."""

    def __init__(self, model: Path, block_size: int = 16, on_layer: OnLayer | None = None) -> None:
        engine = make_engine(model, cpu_backend="native", kv_memory=64 << 20, max_model_len=512, block_size=block_size)
        self.executor = Executor(engine, on_layer)
        self._logits = Tensor()
        inner = engine.model.logits

        def logits(hidden: Tensor) -> Tensor:
            result = inner(hidden)
            self._logits = result.clone()  # sampling may write to it
            return result

        engine.model.logits = logits  # type: ignore[method-assign]

    def answer(self, prompts: list[list[int]], chunk: int, stagger: int = 0, at: int = 0) -> Tensor:
        """Logits `[NEW_TOKENS, vocab]` that the answer to `prompts[at]` was chosen from."""
        running = start(self.executor, prompts, NEW_TOKENS, stagger=stagger)
        rows: list[Tensor] = []
        step = 0
        while len(rows) < NEW_TOKENS:
            plan = next_plan(step, running, NEW_TOKENS, chunk)
            step += 1
            if plan.works:
                self._run(plan, running, at, rows)
        return torch.stack(rows)

    def _run(self, plan: StepPlan, running: list[Running], at: int, rows: list[Tensor]) -> None:
        self.executor.launch(plan)
        collect(self.executor, plan, running)
        sampled = [work.sequence for work in plan.works if work.sampling is not None]
        if at in sampled:
            rows.append(self._logits[sampled.index(at)])


@pytest.mark.parametrize("count", [1, 2])
def test_an_answers_logits_are_the_same_bits_in_any_chunks_and_company(count: int, model: Path) -> None:
    """Neighbours have prompts of all lengths, join at other times, and so share steps of chunks and of decodes."""
    own = make_prompts([PROMPT_TOKENS], VOCABULARY)
    torch.set_num_threads(1)
    watched = Watched(model)
    expected = watched.answer(own, 512)
    torch.set_num_threads(count)
    for chunk in (1, 7, 64, 512):
        assert torch.equal(watched.answer(own, chunk), expected), chunk
    for batch in (2, 8, 64):
        lengths = [1 + 37 * number % 90 for number in range(batch - 1)]
        others = make_prompts(lengths, VOCABULARY, seed=batch)
        at = batch // 2
        prompts = [*others[:at], *own, *others[at:]]
        assert torch.equal(watched.answer(prompts, 64 if batch == 8 else 7, 1, at), expected), batch


def test_the_size_of_blocks_changes_no_bit(model: Path) -> None:
    own = make_prompts([PROMPT_TOKENS], VOCABULARY)
    expected = Watched(model).answer(own, 512)
    for block_size in (8, 32, 64):
        assert torch.equal(Watched(model, block_size).answer(own, 64), expected), block_size


def test_threads_that_come_and_go_within_a_step_change_no_bit(model: Path) -> None:
    """As workers of one host divide its cores anew at each layer."""
    own = make_prompts([PROMPT_TOKENS], VOCABULARY)
    expected = Watched(model).answer(own, 64)

    def on_layer(plan: StepPlan, group: int, layer: int) -> None:
        torch.set_num_threads(1 + (plan.step + layer) % 2)

    assert torch.equal(Watched(model, on_layer=on_layer).answer(own, 64), expected)
