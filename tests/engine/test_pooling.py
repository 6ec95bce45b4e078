"""Vectors and scores equal the formulas of sentence-transformers over transformers' own states, in fp32.

States differ between two correct programs by some hundred roundings of values of about 1, so 1e-4 is far above the
error of fp32, and far below any wrong token, mask or position, which changes a random model's states by about 1.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BertConfig,
    Gemma3TextConfig,
    LlamaConfig,
    ModernBertConfig,
    Qwen3Config,
    XLMRobertaConfig,
)

from contracts.ids import AttemptKey
from contracts.messages.job import Prompt
from contracts.messages.sampling import Limits, Sampling
from engine.blocks.manager import BlockManager
from engine.executor import Executor
from engine.schedule.scheduler import Scheduler, SchedulerLimits
from engine.schedule.sequence import Sequence
from engine.start.load import LoadedEngine
from tests.embedding_models import saved, with_modules
from tests.engine.test_golden import make_engine
from tests.gateway.models import byte_level
from tests.reference import make_prompts

MAX_DIFFERENCE = 1e-4
SIZES: dict[str, Any] = dict(vocab_size=128, hidden_size=32, num_hidden_layers=3, num_attention_heads=4)
LENGTHS = [1, 40, 7, 16, 33, 2]


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
    """Compares results, which have to differ from text to text by much more than the tolerance."""
    assert float((torch.stack(expected).std(0)).max()) > 100 * MAX_DIFFERENCE
    for one, other in zip(found, expected, strict=True):
        assert one.shape == tuple(other.shape)
        np.testing.assert_allclose(one, other.numpy(), atol=MAX_DIFFERENCE)


def states(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
    return found


@pytest.mark.parametrize("cpu_backend", ["native", "torch"])
@pytest.mark.parametrize("method", ["lasttoken", "mean_tokens"])
def test_a_causal_models_vectors(method: str, cpu_backend: str, tmp_path: Path) -> None:
    """The last token's state is found over chunks and behind cached prefixes, the mean in whole texts."""
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


def test_a_chat_models_score_is_the_logit_of_yes_without_that_of_no(tmp_path: Path) -> None:
    """Its softmax over the two tokens' logits is the score, as Qwen3-Reranker's documentation computes it."""
    config = Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=8, intermediate_size=64, tie_word_embeddings=True)
    model = saved(tmp_path, AutoModelForCausalLM.from_config(config))
    texts, expected = make_prompts(LENGTHS, 128), []
    byte_level(tmp_path / "words")
    (tmp_path / "tokenizer.json").write_bytes((tmp_path / "words" / "tokenizer.json").read_bytes())
    for ids in texts:
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([ids])).logits[0, -1, [67, 68]]
        expected.append(torch.softmax(logits, 0)[1:])
    assert_close(results(make_engine(tmp_path, max_model_len=64, score_tokens="a,b"), texts), expected)


def encoder(kind: str, **more: Any) -> Any:
    sizes = dict(**SIZES, intermediate_size=64, max_position_embeddings=66, **more)
    match kind:
        case "bert":
            return BertConfig(**sizes)
        case "xlm-roberta":
            return XLMRobertaConfig(**sizes)
    tokens = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 1)
    return ModernBertConfig(**sizes, **tokens, local_attention=8, global_attn_every_n_layers=2)


@pytest.mark.parametrize(
    ("kind", "pooling"), [("bert", "cls_token"), ("xlm-roberta", "mean_tokens"), ("modernbert", "mean_tokens")]
)
def test_an_encoders_vectors(kind: str, pooling: str, tmp_path: Path) -> None:
    """Texts of many lengths share a step; a text of the longest length fits."""
    model = saved(tmp_path, AutoModel.from_config(encoder(kind)))
    with_modules(tmp_path, f"pooling_mode_{pooling}")
    engine = make_engine(tmp_path, max_model_len=0)
    longest = 64 if kind == "xlm-roberta" else 66
    assert engine.model_config.max_model_len == longest
    texts = [[2 + each % 126 for each in ids] for ids in make_prompts([*LENGTHS, longest], 128)]
    pooled = [states(model, ids)[0] if pooling == "cls_token" else states(model, ids).mean(0) for ids in texts]
    assert_close(results(engine, texts), [functional.normalize(each, dim=0) for each in pooled])


def test_a_decoder_whose_tokens_see_all_others_is_computed_so(tmp_path: Path) -> None:
    config = Gemma3TextConfig(
        **SIZES, num_key_value_heads=2, head_dim=8, intermediate_size=64, use_bidirectional_attention=True
    )
    model = saved(tmp_path, AutoModel.from_config(config))
    with_modules(tmp_path, "pooling_mode_mean_tokens")
    texts = [[2 + each % 126 for each in ids] for ids in make_prompts(LENGTHS, 128)]
    pooled = [functional.normalize(states(model, ids).mean(0), dim=0) for ids in texts]
    assert_close(results(make_engine(tmp_path, max_model_len=64), texts), pooled)


@pytest.mark.parametrize("kind", ["bert", "xlm-roberta"])
def test_an_encoders_classifier_scores_pairs(kind: str, tmp_path: Path) -> None:
    """BERT tells the texts of a pair apart by types: 1 behind the first separator."""
    model = saved(tmp_path, AutoModelForSequenceClassification.from_config(encoder(kind, num_labels=1)))
    byte_level(tmp_path / "words")
    (tmp_path / "tokenizer.json").write_bytes((tmp_path / "words" / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text('{"sep_token": "<|im_end|>"}')
    separator = 2
    texts = [[3 + each % 120 for each in ids] + [separator, 7, 8, 9, separator] for ids in make_prompts(LENGTHS, 128)]
    expected = []
    for ids in texts:
        types = {"token_type_ids": torch.tensor([[0] * (len(ids) - 4) + [1] * 4])} if kind == "bert" else {}
        with torch.inference_mode():
            expected.append(torch.sigmoid(model(input_ids=torch.tensor([ids]), **types).logits[0]))
    assert_close(results(make_engine(tmp_path, max_model_len=0), texts), expected)
