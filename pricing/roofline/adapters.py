"""Predicts what adapters add to a step on a GPU, by its rates.

seconds = max(a v b / r, 2 v t / m)     a adapters of v values of b bytes are read, t rows are multiplied by one each
"""

from pricing.roofline.gpu_rates import GpuRates
from pricing.roofline.gpu_step_time import MULTIPLY_SHARE, READ_SHARE

ADAPTER_VALUE_BYTES = 2


def adapter_seconds(values: float, rows: int, adapters: int, gpu: GpuRates) -> float:
    """Returns the seconds of `rows` rows with one of `adapters` adapters each; `values`: of the largest adapter."""
    reading = adapters * values * ADAPTER_VALUE_BYTES / (gpu.read * READ_SHARE)
    return max(reading, 2 * values * rows / (gpu.multiply * MULTIPLY_SHARE))
