"""The split system gives transformers' greedy tokens, to the token; and the test would see a lost or foreign block."""

from pathlib import Path

import pytest
import torch

from contracts.kv.spec import blocks_for
from engine.kv.spec import make_spec
from engine.model.checkpoint.read_config import read_config
from engine.start.block_counts import PoolLoad, counts_in
from launcher.devices.gpus import visible_gpus
from tests.e2e.harness.golden import build_served_model, complete_all, references
from tests.e2e.harness.system import System

SHORT = [1, 2, 15, 16, 17, 31, 33, 47, 64, 65, 97, 100, 128, 150, 199]
LONG = [255, 256, 300, 333, 400, 511, 512, 513, 550, 577, 590, 595, 597, 598, 599, 600]
LENGTHS = [*SHORT, *LONG, 29]  # of prompts, in tokens
STEP_TOKENS = 56  # tokens per step: divides none of the long prompts
FP32 = ("--dtype", "fp32", "--kv-memory", "64MiB", "--max-batch-tokens", str(STEP_TOKENS))


@pytest.mark.parametrize("variant", ["llama", "qwen3", "deepseek-v3"])
def test_two_by_two_workers_give_the_references_tokens(tmp_path: Path, variant: str) -> None:
    model = build_served_model(tmp_path / "model", variant)
    runs = references(model, LENGTHS, new_tokens=12)
    with System(tmp_path, model, prefill=2, decode=2, worker=FP32) as system:
        assert complete_all(system.gateway_url, runs) == [run.tokens for run in runs]
        records = system.wait_until_idle()
        decode = [record for record in records if record.role == "decode"]
        # KV was moved and not computed again: all of it, once, and decode workers computed no prompt.
        assert sum(record.load.handoffs for record in decode) == len(runs)
        assert all(record.load.handoffs > 0 for record in records), "both workers of each role had work"
        spec_bytes = block_bytes(system)
        moved = sum(blocks_for(len(run.prompt), 16) for run in runs) * spec_bytes
        assert sum(record.load.handoff_bytes for record in decode) == moved
        assert all(record.load.prompt_tokens == 0 for record in decode)
        assert {record.prefill_worker for record in system.finished()} == {
            record.epoch for record in records if record.role == "prefill"
        }


def test_windows_are_held_and_shipped_and_nothing_before_them(tmp_path: Path) -> None:
    """Texts of 8 to 46 windows of 13 tokens, in pools where a layer with a window has no room for a text."""
    model = build_served_model(tmp_path / "model", "gemma2")
    config = read_config(model, 0)
    spec = make_spec(config, torch.float32, 8, "")
    assert [group.window for group in spec.groups] == [0, 13]
    runs = references(model, [8 * 13, 8 * 13 + 1, 255, 300, 333, 597, 600], new_tokens=12)
    counts = counts_in(spec, PoolLoad(config.max_model_len, STEP_TOKENS), 2 << 20)
    assert counts is not None and counts[1] <= blocks_for(600, 8) < counts[0], "a window has room for all of a text"
    worker = [*FP32, "--kv-memory", "2MiB", "--block-size", "8"]
    with System(tmp_path, model, worker=worker) as system:
        assert complete_all(system.gateway_url, runs) == [run.tokens for run in runs]
        decode = [record for record in system.wait_until_idle() if record.role == "decode"]
        assert sum(record.load.handoffs for record in decode) == len(runs)
        assert all(record.load.prompt_tokens == 0 for record in decode)
        moved = sum(
            len(group.needed_blocks(len(run.prompt))) * group.layers_bytes() for run in runs for group in spec.groups
        )
        assert sum(record.load.handoff_bytes for record in decode) == moved


def test_the_gpus_path_gives_the_references_tokens(tmp_path: Path) -> None:
    """Triton's kernels and recorded decode steps in both workers: on a GPU if there is one, else interpreted."""
    device = "cuda" if visible_gpus() else "cpu"
    model = build_served_model(tmp_path / "model", "qwen3")
    runs = references(model, [3, 20], new_tokens=3)
    worker = ["--dtype", "fp32", "--kv-memory", "16MiB", "--max-batch-tokens", "32", "--max-sequences", "2"]
    worker += ["--device", device, f"--{device}-backend", "triton"]
    with System(tmp_path, model, worker=worker) as system:
        assert complete_all(system.gateway_url, runs) == [run.tokens for run in runs]
        assert sum(record.load.handoffs for record in system.wait_until_idle()) == 2 * len(runs)


def block_bytes(system: System) -> int:
    """Counts the bytes of a block of all layers in fp32: layers x block x numbers of a token x 4.

    Those are 2 x KV heads x head size, or of latent attention the latent vector's and the rotated key's.
    """
    import json

    config = json.loads((system.model / "config.json").read_text())
    if "kv_lora_rank" in config:
        numbers = config["kv_lora_rank"] + config["qk_rope_head_dim"]
    else:
        head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        numbers = 2 * config["num_key_value_heads"] * head
    return int(config["num_hidden_layers"] * 16 * numbers * 4)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_served_model(tmp_path_factory.mktemp("model"), "llama")


@pytest.mark.parametrize("mutation", ["none", "token", "block", "layer", "swap"])
def test_spoiled_kv_changes_the_tokens(tmp_path: Path, tiny: Path, mutation: str) -> None:
    runs = references(tiny, [40, 40, 40, 40], new_tokens=16, seed=3)
    mutant = {"MUTATION": mutation}
    with System(
        tmp_path, tiny, worker=FP32, decode_module="tests.e2e.harness.mutant_decode", environment=mutant
    ) as system:
        same = complete_all(system.gateway_url, runs) == [run.tokens for run in runs]
    assert same == (mutation == "none")
