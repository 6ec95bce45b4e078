"""The number of threads follows the work of a step."""

from pricing.threads import useful_threads


def test_a_tiny_models_decode_step_is_worth_one_thread_and_its_prompt_more() -> None:
    assert useful_threads(2_500_000, 2, tokens=1) == 1
    assert useful_threads(2_500_000, 2, tokens=512) > 8


def test_reading_large_weights_is_worth_many_threads() -> None:
    assert useful_threads(135_000_000, 2, tokens=1) > 16
    assert useful_threads(8_000_000_000, 2, tokens=1) > 512
