"""A step's predicted time is its bytes, its products or its instructions, whichever takes longest."""

import msgspec
import pytest

from pricing.roofline.gpu_rates import GPU_RATES, GpuRates
from pricing.roofline.gpu_step_time import (
    DIRECT_LAUNCH_S,
    ISSUE_SHARE,
    MULTIPLY_SHARE,
    READ_SHARE,
    RECORDED_LAUNCH_S,
    WEIGHT_INSTRUCTIONS,
    ModelShape,
    expected_costs,
    floor_seconds,
    step_seconds,
)
from pricing.step_costs.steps import StepWork, pairs_of

H100 = GPU_RATES["H100"]
LLAMA_8B = ModelShape(parameters=7.5e9, weights_bytes=15e9, token_bytes=131_072, pair_width=262_144, launches=227)
ALONE = StepWork(sequences=1, context=1)


def test_a_decode_step_reads_the_weights_and_launches_its_kernels() -> None:
    """15 GB at 80% of 3.35 TB/s are 5.6 ms; 227 launches are 0.2 ms."""
    assert step_seconds(LLAMA_8B, ALONE, H100) == pytest.approx(5.597e-3 + 0.227e-3, rel=1e-3)
    assert floor_seconds(LLAMA_8B, ALONE, H100) == pytest.approx(15e9 / 3.35e12, rel=1e-3)


def test_a_long_prompt_is_bound_by_products() -> None:
    prompt = StepWork(8192, pairs_of(0, 8192))
    operations = 2 * 7.5e9 * 8192 + 2 * 262_144 * 8192 * 8193 / 2
    assert floor_seconds(LLAMA_8B, prompt, H100) == pytest.approx(operations / 989e12)
    assert step_seconds(LLAMA_8B, prompt, H100) == pytest.approx(operations / 989e12 / MULTIPLY_SHARE, rel=1e-2)


def test_a_step_of_dequantized_weights_is_bound_by_instructions_where_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On an H100 memory brings a weight of int4 in 2.1e-13 s; on an RTX 4090, whose memory is slow, in 7e-13 s."""
    monkeypatch.setitem(WEIGHT_INSTRUCTIONS, "int4", 11.0)
    int4 = msgspec.structs.replace(LLAMA_8B, weights_bytes=7.5e9 * 0.5625, weights="int4", launches=0)
    issued = WEIGHT_INSTRUCTIONS["int4"] * 7.5e9 / 32

    def bounds(gpu: GpuRates) -> tuple[float, float]:
        return 7.5e9 * 0.5625 / (gpu.read * READ_SHARE), issued / (gpu.processors * 4 * gpu.clock * ISSUE_SHARE)

    few = msgspec.structs.replace(LLAMA_8B, weights_bytes=7.5e9 * 0.5625, launches=0)
    for gpu in (H100, GPU_RATES["RTX 4090"]):
        linear = step_seconds(int4, StepWork(sequences=1), gpu)
        assert linear == pytest.approx(max(bounds(gpu)))
        assert step_seconds(few, StepWork(sequences=1), gpu) == pytest.approx(bounds(gpu)[0])
        assert (bounds(gpu)[1] > bounds(gpu)[0]) == (gpu is H100)


def test_a_step_that_is_not_recorded_waits_for_the_host() -> None:
    small = msgspec.structs.replace(LLAMA_8B, parameters=1e8, weights_bytes=2e8)
    assert step_seconds(small, ALONE, H100, recorded=False) == 227 * DIRECT_LAUNCH_S
    assert step_seconds(small, ALONE, H100) < 227 * DIRECT_LAUNCH_S


def test_no_prediction_is_below_the_floor() -> None:
    steps = [ALONE, StepWork(sequences=64, context=1 << 17), StepWork(512, pairs_of(2048, 512), 32, 1 << 16)]
    for gpu in GPU_RATES.values():
        for work in steps:
            assert step_seconds(LLAMA_8B, work, gpu) > floor_seconds(LLAMA_8B, work, gpu)


def test_expected_costs_predict_what_the_formula_does() -> None:
    costs = expected_costs(LLAMA_8B, H100)
    decode = StepWork(sequences=8, context=8 * 4096)
    assert costs.seconds(decode) == pytest.approx(step_seconds(LLAMA_8B, decode, H100), rel=0.05)
    assert costs.step == pytest.approx(step_seconds(LLAMA_8B, StepWork(), H100))
    assert costs.step > 227 * RECORDED_LAUNCH_S
