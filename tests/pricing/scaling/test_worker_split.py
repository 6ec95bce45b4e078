"""Prefill and decode workers of a host: as many of each as a typical request keeps busy."""

import pytest

from pricing.roofline.gpu_rates import A100, GPU_RATES, known_rates, rates_of
from pricing.roofline.gpu_step_time import ModelShape, expected_costs
from pricing.scaling.worker_split import MAX_TYPICAL_SEQUENCES, TYPICAL_CONTEXT_TOKENS, split, typical_sequences
from pricing.step_costs.steps import StepCosts


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100-SXM4-40GB", "A100 SXM4 40GB"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
    ],
)
def test_a_gpu_is_known_by_its_name(name: str, part: str) -> None:
    assert rates_of(name) == GPU_RATES[part]


def test_an_unknown_gpu_counts_as_a_usual_one() -> None:
    assert rates_of("NVIDIA L400") == rates_of("") == A100 and known_rates("NVIDIA T4") is None


def test_a_step_reads_the_weights_and_a_token_is_multiplied_by_them() -> None:
    """8 billion weights in bf16 on an H100: six milliseconds to read, and some 37,000 tokens of prompts a second."""
    costs = expected_costs(ModelShape(8e9, 16e9, 131_072), GPU_RATES["H100"])
    assert costs.step == pytest.approx(0.006, rel=0.01)
    assert 1 / costs.prompt_token == pytest.approx(37_000, rel=0.01)
    assert costs.context_token / costs.step == pytest.approx(131_072 / 16e9)


@pytest.mark.parametrize("workers", [2, 3, 8])
@pytest.mark.parametrize(("prompt_token", "more"), [(1e-9, "decode"), (1.0, "prefill")])
def test_each_role_has_a_worker_and_the_busier_role_the_others(workers: int, prompt_token: float, more: str) -> None:
    prefill, decode = split(workers, StepCosts(step=1e-3, prompt_token=prompt_token), 1)
    assert (prefill, decode) == ((1, workers - 1) if more == "decode" else (workers - 1, 1))


def test_no_other_split_serves_more_requests_a_second() -> None:
    """With 16 sequences a decode worker takes 16 s for an answer, as a prefill worker for a prompt: half of each.

    A prefill step of 8 prompts reads the weights once, in 1 s.
    """
    costs = StepCosts(step=1.0, prompt_token=(16.0 - 1 / 8) / 1024)
    assert split(8, costs, 16) == (4, 4)
    assert split(8, costs, 48) == (6, 2)
    assert split(8, costs, 5) == (2, 6)


def test_sequences_are_those_that_fit_beside_the_weights() -> None:
    each = 131_072.0
    assert typical_sequences(10.5 * each * TYPICAL_CONTEXT_TOKENS, each) == 10
    assert typical_sequences(-1.0, each) == 1, "weights that do not fit are refused elsewhere"
    assert typical_sequences(1e15, each) == typical_sequences(0.0, 0.0) == MAX_TYPICAL_SEQUENCES
