"""Rates of NVIDIA's GPUs, and the step costs that they let expect before a worker has run on the host.

A worker replaces expected costs by its own measurements; only the numbers of workers on a host are chosen by them.
"""

from msgspec import Struct

from pricing.steps import StepCosts

READ_SHARE = 0.8  # of the data sheet's bandwidth, which decode steps reach
MULTIPLY_SHARE = 0.6  # of the data sheet's rate of products, which steps of prompts reach


class GpuRates(Struct, frozen=True):
    """A GPU's figures as in its data sheet: memory in bytes, bytes read per second, bf16 operations per second."""

    memory: float
    read: float
    multiply: float


A100 = GpuRates(80e9, 2.04e12, 312e12)
GPU_RATES = {
    "B200": GpuRates(180e9, 8.0e12, 2250e12),
    "H200": GpuRates(141e9, 4.8e12, 989e12),
    "H100": GpuRates(80e9, 3.35e12, 989e12),
    "H100 NVL": GpuRates(94e9, 3.9e12, 835e12),
    "H100 PCIe": GpuRates(80e9, 2.0e12, 756e12),
    "A100": A100,
    "A40": GpuRates(48e9, 0.696e12, 150e12),
    "A10": GpuRates(24e9, 0.6e12, 125e12),
    "A10G": GpuRates(24e9, 0.6e12, 70e12),
    "L40S": GpuRates(48e9, 0.864e12, 362e12),
    "L4": GpuRates(24e9, 0.3e12, 121e12),
    "RTX A6000": GpuRates(48e9, 0.768e12, 155e12),
    "RTX 6000 Ada": GpuRates(48e9, 0.96e12, 364e12),
    "RTX 5090": GpuRates(32e9, 1.79e12, 209e12),
    "RTX 4090": GpuRates(24e9, 1.01e12, 165e12),
    "RTX 3090": GpuRates(24e9, 0.936e12, 71e12),
}
"""Dense rates by a part of the name that nvidia-smi shows; of several parts in a name, the longest counts."""


def rates_of(name: str) -> GpuRates:
    """Returns the rates of the GPU that nvidia-smi calls `name`; an unknown GPU counts as an A100."""
    parts = [part for part in GPU_RATES if f" {part} " in f" {name.replace('-', ' ')} "]
    return GPU_RATES[max(parts, key=len)] if parts else A100


def expected_costs(gpu: GpuRates, parameters: float, weights_bytes: float, token_bytes: float) -> StepCosts:
    """Estimates step costs: a token takes two operations for each parameter, a step reads all weights and KV once.

    `parameters`: weights that a token is multiplied by; `token_bytes`: KV of a token in all layers.
    """
    token = 2 * parameters / (gpu.multiply * MULTIPLY_SHARE)
    read = gpu.read * READ_SHARE
    return StepCosts(
        step=weights_bytes / read, prompt_token=token, sequence=token, context_token=token_bytes / read, row=token
    )
