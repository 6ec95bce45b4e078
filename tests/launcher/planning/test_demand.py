"""What a load demands: lengths, shared prefixes, the busiest part of a trace."""

import random
from pathlib import Path

import pytest

from launcher.planning.demand import demand
from launcher.planning.options import PlanConfig


def test_prompts_find_the_prefix_that_all_share() -> None:
    config = PlanConfig(model="m", prompt_tokens="100", output_tokens="7", shared_tokens=900, rate=20.0, seconds=5.0)
    found = demand(config, list(config.timed_requests(random.Random(1))))
    assert [prompt.cached for prompt in found.prompts].count(0) <= 1  # of the first prompt
    assert {prompt.tokens for prompt in found.prompts if prompt.cached} == {100}
    assert (found.output_tokens, found.longest, found.rate) == (7, 1007, 20.0) and found.prompt_tokens == 1000
    assert found.mean_rate == pytest.approx(20.0, rel=0.3)


def test_a_trace_counts_with_its_busiest_part(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    times = [*range(0, 100_000, 10_000), *range(90_000, 100_001, 500)]
    rows = [f'{{"timestamp": {at}, "input_length": 512, "output_length": 5}}' for at in sorted(times)]
    file.write_text("\n".join(rows))
    config = PlanConfig(model="m", trace=str(file))
    assert demand(config, list(config.timed_requests(random.Random(1)))).rate == pytest.approx(2.1, rel=0.05)
