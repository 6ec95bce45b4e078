"""A head that is trained for the demo model is one that the engine reads, and it learns what the model will say."""

from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from demo_model.eagle import EagleHead, save, shifted, train
from demo_model.packing import Packer
from demo_model.train import WEIGHTS
from engine.start.load import load_engine
from infra.config.engine import EngineConfig


def test_a_few_steps_lower_the_loss_and_the_engine_reads_the_head(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM.from_pretrained(WEIGHTS, dtype=torch.float32, attn_implementation="eager")
    model.requires_grad_(False)
    head = EagleHead(model.config)
    text = ([1, *torch.randint(3, 2000, (60,)).tolist()], [1.0] * 61)
    losses = train(20, Packer(iter([text] * 400), 256, 0), model, head)
    assert losses[-1] < 0.9 * losses[0]
    save(head, model.config, tmp_path / "head")
    config = EngineConfig(
        model=str(WEIGHTS), device="cpu", kv_memory=4 << 20, speculation="eagle", eagle=str(tmp_path / "head")
    )
    assert load_engine(config, lambda stage, percent: None).follower is not None


def test_no_token_reads_its_own_state() -> None:
    states = torch.arange(6.0).view(1, 3, 2)
    assert shifted(states).tolist() == [[[0.0, 0.0], [0.0, 1.0], [2.0, 3.0]]]
