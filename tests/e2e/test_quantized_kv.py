"""Quantized KV through the split system: the reference's tokens, whatever was cached, swapped or computed in chunks."""

from pathlib import Path

from contracts.kv.spec import blocks_for
from tests.e2e.harness.golden import build_served_model, complete_all
from tests.e2e.harness.system import System
from tests.engine.test_quantized_kv import certain
from tests.reference import Golden, golden, make_prompts
from tests.rounded_cache import load_rounding
from tests.variants import VARIANTS

LENGTHS = [1, 16, 17, 40, 64, 100, 150, 199]
NEW_TOKENS = 6
WORKER_OPTIONS = ("--dtype", "fp32", "--kv-dtype", "int8", "--max-model-len", "256", "--kv-memory", "512KiB")
SPLIT = (*WORKER_OPTIONS, "--host-kv-memory", "512KiB", "--max-batch-tokens", "24")
BLOCK_BYTES = 4 * 16 * 2 * 2 * (32 + 2)
"""Of four layers with two KV heads of 32 numbers: a byte each, and two of the scale."""


def test_the_split_system_gives_the_references_tokens(tmp_path: Path) -> None:
    """Prompts that begin alike come twice to pools in which not all of them fit: blocks are shared, forked, swapped."""
    model = build_served_model(tmp_path / "model", "llama")
    (stem, *others) = make_prompts([199, *LENGTHS], VARIANTS["llama"]().vocab_size)
    prompts = [*others, *([*stem[:length], 5] for length in (20, 47, 150))]
    runs = golden(model, prompts, NEW_TOKENS, load=load_rounding("int8"), safety=0.0)
    with System(tmp_path, model, worker=SPLIT) as system:
        for _ in range(2):
            _compare(complete_all(system.gateway_url, runs), runs)
        decode = next(record for record in system.wait_until_idle() if record.role == "decode")
        assert decode.load.handoffs == 2 * len(runs) and decode.load.prompt_tokens == 0 and decode.kv_dtype == "int8"
        assert decode.memory.token_bytes == BLOCK_BYTES // 16
        once = BLOCK_BYTES * sum(blocks_for(len(run.prompt), 16) for run in runs)
        assert decode.load.handoff_bytes % BLOCK_BYTES == 0 and decode.load.handoff_bytes < 2 * once


def _compare(answers: list[list[int]], runs: list[Golden]) -> None:
    sure = [certain(run) for run in runs]
    assert [tokens[: len(own)] for tokens, own in zip(answers, sure, strict=True)] == sure
