"""Vectors and scores equal the formulas of sentence-transformers over transformers' own states, in fp32.

States differ between two correct programs by some hundred roundings of values of about 1, so 1e-4 is far above the
error of fp32, and far below any wrong token, mask or position, which changes a random model's states by about 1.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import AutoModel, AutoModelForSequenceClassification, LlamaConfig, Qwen3Config

from contracts.ids import AttemptKey
from contracts.messages.job import Prompt
from contracts.messages.sampling import Limits, Sampling
from engine.blocks.manager import BlockManager
from engine.executor import Executor
from engine.schedule.scheduler import Scheduler, SchedulerLimits
from engine.schedule.sequence import Sequence
from engine.start.load import LoadedEngine
from tests.engine.test_golden import make_engine
from tests.reference import make_prompts

TOLERANCE = 1e-4
SIZES: dict[str, Any] = dict(vocab_size=128, hidden_size=32, num_hidden_layers=3, num_attention_heads=4)
LENGTHS = [1, 40, 7, 16, 33, 2]


def saved(directory: Path, model: Any) -> Any:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2)
    model.float().eval().save_pretrained(directory)
    return model


def with_modules(directory: Path, pooling: str, *, normalized: bool = True) -> None:
    """Writes what sentence-transformers writes beside a model."""
    names = ["models.Transformer", "models.Pooling", *(["models.Normalize"] if normalized else [])]
    modules = [
        {"idx": at, "name": str(at), "path": f"{at}_{name.rpartition('.')[2]}", "type": f"sentence_transformers.{name}"}
        for at, name in enumerate(names)
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir()
    modes = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": False}
    (directory / "1_Pooling" / "config.json").write_text(json.dumps({**modes, pooling: True, "include_prompt": True}))


def results(engine: LoadedEngine, texts: list[list[int]]) -> list[np.ndarray[Any, Any]]:
    """Runs texts through a scheduler and the executor, as a worker does, several in a step and in chunks."""
    pooler = engine.pooler
    assert pooler is not None
    limits = SchedulerLimits(
        max_batch_tokens=engine.step_tokens,
        max_sequences=8,
        max_model_len=engine.model_config.max_model_len + 1,
        pools=True,
        whole_prompts=pooler.whole,
    )
    scheduler = Scheduler(BlockManager(engine.pool.spec, engine.pool.counts), limits)
    executor, found = Executor(engine), dict[str, bytes]()
    for number, ids in enumerate(texts):
        key = AttemptKey(str(number), 0, 1)
        scheduler.add(Sequence(key, "gateway", Prompt(ids, len(ids)), 1e9, Sampling(0), Limits(1)))
    steps = 0
    while (plan := scheduler.plan(0.0)) is not None:
        executor.launch(plan)
        for each in scheduler.apply(executor.collect(), 0.0):
            assert (each.finish, each.tokens, each.failed) == ("stop", [], "")
            found[each.sequence.key.request] = each.state
        steps += 1
    scheduler.check_invariants()
    assert scheduler.load().output_tokens == 0 and steps < len(texts)
    return [np.frombuffer(found[str(number)], np.float32) for number in range(len(texts))]


def assert_close(found: list[np.ndarray[Any, Any]], expected: list[torch.Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.shape == tuple(other.shape)
        np.testing.assert_allclose(one, other.numpy(), atol=TOLERANCE)


def states(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
    return found


@pytest.mark.parametrize("cpu_backend", ["native", "torch"])
@pytest.mark.parametrize("method", ["lasttoken", "mean_tokens"])
def test_a_causal_models_vectors(method: str, cpu_backend: str, tmp_path: Path) -> None:
    """The last token's state is found over chunks and with cached prefixes, the mean in whole texts; no head is there."""
    config = Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=8, intermediate_size=64, max_position_embeddings=64)
    model = saved(tmp_path, AutoModel.from_config(config))
    with_modules(tmp_path, f"pooling_mode_{method}", normalized=method == "lasttoken")
    texts = make_prompts(LENGTHS, 128)
    texts += [texts[1][:36] + texts[3], texts[1]]
    engine = make_engine(tmp_path, max_model_len=0, max_batch_tokens=24, cpu_backend=cpu_backend)
    assert engine.step_tokens == (24 if method == "lasttoken" else 64)
    if method == "lasttoken":
        expected = [functional.normalize(states(model, ids)[-1], dim=0) for ids in texts]
    else:
        expected = [states(model, ids).mean(0) for ids in texts]
    assert_close(results(engine, texts), expected)


def test_a_causal_classifiers_scores(tmp_path: Path) -> None:
    config = LlamaConfig(**SIZES, num_key_value_heads=2, intermediate_size=64, num_labels=1, pad_token_id=0)
    model = saved(tmp_path, AutoModelForSequenceClassification.from_config(config))
    texts = [[each or 1 for each in ids] for ids in make_prompts(LENGTHS, 128)]
    with torch.inference_mode():
        expected = [torch.sigmoid(model(input_ids=torch.tensor([ids])).logits[0]) for ids in texts]
    assert_close(results(make_engine(tmp_path, max_model_len=64), texts), expected)
