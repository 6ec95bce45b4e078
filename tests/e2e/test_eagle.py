"""A head that guesses hidden states changes no token, through the split system, whoever dies and whatever is short."""

from pathlib import Path
from typing import Any

from contracts.messages.sampling import Sampling
from tests.e2e.harness.deaths import death_midway
from tests.e2e.harness.golden import build_served_model, complete_all, references
from tests.e2e.harness.system import System
from tests.engine.drive import run, start
from tests.engine.speculation.heads import build_head
from tests.engine.test_golden import make_executor
from tests.reference import Golden
from tests.variants import VARIANTS
from tests.waiting import wait_until

NEW_TOKENS = 40
WORKER_OPTIONS = ("--dtype", "fp32", "--kv-memory", "1280KiB", "--max-model-len", "320", "--max-batch-tokens", "56")
SEED = 11


def drawn(model: Path, runs: list[Golden]) -> list[list[int]]:
    """What an engine draws that guesses nothing, of each prompt with the same seed."""
    executor = make_executor(model, kv_memory=64 << 20, max_model_len=320)
    samplings = [Sampling(seed=SEED, temperature=1.0)] * len(runs)
    running = start(executor, [each.prompt for each in runs], NEW_TOKENS, samplings=samplings)
    return run(executor, running, NEW_TOKENS, chunk=56)


def test_tokens_are_those_without_a_head(tmp_path: Path) -> None:
    """Greedy while a decode worker is killed in mid-answer; then drawn by a seed, from prompts that are cached."""
    model = build_served_model(tmp_path / "model", "llama")
    build_head(tmp_path / "head", VARIANTS["llama"]())
    # Those of 20 tokens are many at once, and more than fit when they have grown.
    runs = references(model, [20, 150, 90, 210, 40, 64, 20, 20, 20, 20] * 2, NEW_TOKENS)
    speculation = ("--speculation", "eagle", "--eagle", str(tmp_path / "head"), "--speculative-tokens", "3")
    with System(tmp_path, model, decode=2, worker=(*WORKER_OPTIONS, *speculation)) as system:
        with death_midway(system):
            answers = complete_all(system.gateway_url, runs)
        assert answers == [each.tokens for each in runs]
        seeded: dict[str, Any] = {"temperature": 1.0, "seed": SEED}
        assert complete_all(system.gateway_url, runs, **seeded) == drawn(model, runs)
        wait_until(lambda: len(system.records()) == 2, "the dead worker's record to expire")
        prefill, decode = sorted(system.wait_until_idle(), key=lambda record: record.role, reverse=True)
        assert prefill.load.kv.found_tokens > 0, "prompts were found in the cache"
        assert decode.load.preemptions > 0 and decode.load.handoffs >= len(runs)
        assert decode.load.speculation.proposed > 0 and prefill.load.speculation.proposed == 0
