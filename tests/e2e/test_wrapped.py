"""Models that transformers' own code computes give its greedy tokens through the split system."""

from pathlib import Path

import pytest

from contracts.kv.spec import blocks_for
from tests.e2e.harness.golden import build_served, complete_all, golden_runs
from tests.e2e.harness.system import System
from tests.engine.wrapped.models import WRAPPED
from tests.reference import make_prompts

LENGTHS = [1, 16, 17, 64, 100, 150, 199, 33, 47, 128]
FP32 = ("--dtype", "fp32", "--kv-memory", "16MiB", "--max-batch-tokens", "56")


@pytest.mark.timeout(180)
@pytest.mark.parametrize("variant", ["gpt2", "jetmoe"])
def test_transformers_own_code_serves_what_we_have_no_family_for(tmp_path: Path, variant: str) -> None:
    """Nobody asks for it: `auto` finds that there is no family. The second round finds its prompts in the cache."""
    config = WRAPPED[variant]()
    model = build_served(tmp_path / "model", config)
    runs = golden_runs(model, make_prompts(LENGTHS, config.vocab_size), new_tokens=8)
    with System(tmp_path, model, worker=FP32) as system:
        for _ in range(2):
            assert complete_all(system.gateway_url, runs) == [run.tokens for run in runs]
        records = {record.role: record.load for record in system.wait_until_idle()}
        assert records["decode"].handoffs == 2 * len(runs) and records["decode"].prompt_tokens == 0
        token_bytes = 3 * 2 * 4 * 16 * 4  # layers, keys and values, heads, numbers of one, bytes of one
        whole = sum(blocks_for(len(run.prompt), 16) for run in runs) * 16 * token_bytes
        assert whole <= records["decode"].handoff_bytes < 1.5 * whole
        assert "transformers' own forward pass" in system.log()
