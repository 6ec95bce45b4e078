"""A model of each family, and of each format of quantized weights, gives transformers' tokens through the split system.

They are greedy, and come over HTTP. Of quantized weights transformers has the numbers that they mean.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from infra.redis.records import FinishedRecord
from tests.e2e.harness.golden import build_served, build_served_model, complete_all, references
from tests.e2e.harness.system import System
from tests.engine.model.formats.cases import COMPRESSED, build
from tests.reference import Golden
from tests.waiting import wait_until

FAMILIES = ["gemma2", "gemma3", "phi3-longrope", "granite", "olmo2", "olmo3", "smollm3", "glm4"]
FAMILIES += ["mixtral", "qwen2-moe", "qwen3-moe", "gpt-oss", "deepseek-v2", "deepseek-v3"]
"""One variant of each; `tests/engine/test_golden.py` has the others, and every option."""
FORMATS = [COMPRESSED, "awq, experts", "gptq, desc_act", "fp8, blocks, latent"]
"""Of `tests/engine/model/formats/cases.py`, which has the others."""
LENGTHS = [2, 5, 9, 12, 17, 20, 25, 33, 40, 47]  # of prompts, in tokens: several chunks, blocks and windows
WORKER_OPTIONS = ("--dtype", "fp32", "--kv-memory", "8MiB", "--max-batch-tokens", "16", "--max-model-len", "256")
AT_ONCE = 3
"""Systems that run at the same time: most of a start and a stop is waiting."""

Outcome = tuple[list[Golden], list[list[int]], list[FinishedRecord]]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Outcome]]]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = {}
        for family in FAMILIES:
            directory = tmp_path_factory.mktemp(family)
            model = build_served_model(directory / "model", family)
            running[family] = pool.submit(_ask, directory, model, references(model, LENGTHS, new_tokens=6))
        for format in FORMATS:
            directory = tmp_path_factory.mktemp("formats")
            model, twin = build(format, directory, build_served)
            running[format] = pool.submit(_ask, directory, model, references(twin, LENGTHS, new_tokens=6))
        yield running


def _ask(directory: Path, model: Path, runs: list[Golden]) -> Outcome:
    with System(directory, model, worker=WORKER_OPTIONS) as system:
        answers = complete_all(system.gateway_url, runs)
        wait_until(lambda: len(system.finished()) == len(runs), "the requests' records")
        return runs, answers, system.finished()


@pytest.mark.parametrize("family", [*FAMILIES, *FORMATS])
def test_every_family_and_format_gives_the_references_tokens(family: str, outcomes: dict[str, Future[Outcome]]) -> None:
    runs, answers, records = outcomes[family].result()
    assert answers == [run.tokens for run in runs]
    assert all(record.handoff_bytes and record.attempts == 1 for record in records), "KV went from worker to worker"
