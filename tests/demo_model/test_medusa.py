"""The demo model's heads: training brings them nearer to what it says, and those that ship foresee its answers."""

import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

from demo_model.foreseen import ranks, saved_heads
from demo_model.medusa import HEADS, Heads, judged, train
from demo_model.packing import Packer
from demo_model.tokenizer import Encoder
from demo_model.train import WEIGHTS, training_text

STEP_TOKENS = 512  # of a step


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(WEIGHTS)


@pytest.fixture(scope="module")
def base() -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(WEIGHTS, dtype=torch.float32).requires_grad_(False)


def test_training_brings_heads_nearer_to_what_the_model_says(
    base: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase
) -> None:
    """On texts that it has not learned from; the model itself stays as it was."""
    torch.manual_seed(1)
    packer = Packer(training_text(Encoder(tokenizer.backend_tokenizer)), STEP_TOKENS, tokenizer.pad_token_id)
    heads, (ids, weights) = Heads(3, 2, base.config.hidden_size), packer.next_batch()
    before = {name: value.clone() for name, value in base.named_parameters()}
    with torch.no_grad():
        first, _ = judged(base, heads, ids, weights)
    train(12, packer, base, heads)
    with torch.no_grad():
        then, _ = judged(base, heads, ids, weights)
    assert (then < 0.98 * first).all()
    assert all(torch.equal(value, before[name]) for name, value in base.named_parameters())


def test_shipped_heads_foresee_answers(base: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase) -> None:
    """The nearest token best, as the table in the README says."""
    shipped = saved_heads(HEADS, base.config.hidden_size)
    found = (ranks(base, shipped, tokenizer, 6) == 0).float().mean(0)
    assert found[0] > 0.5 and found[0] > found[1] > 0.3
