"""Rates of NVIDIA's GPUs, as their data sheets and the CUDA C++ Programming Guide have them."""

from msgspec import Struct
from msgspec.structs import replace

ISSUED_WARPS_PER_CLOCK = 4  # by one multiprocessor, since compute capability 7.0
WARP_THREADS = 32


class GpuRates(Struct, frozen=True):
    """A GPU: memory in bytes; bytes read, and bf16 operations, per second; processors and their clock in Hz."""

    memory: float
    read: float
    multiply: float
    processors: int
    clock: float
    compute_capability: int

    @property
    def issue(self) -> float:
        """Instructions per second, each counted once for a warp of 32 threads."""
        return self.processors * ISSUED_WARPS_PER_CLOCK * self.clock

    def together(self, gpus: int) -> "GpuRates":
        """Returns the rates of several GPUs that divide each step, without the time of their communication."""
        if gpus == 1:
            return self
        return replace(
            self,
            memory=gpus * self.memory,
            read=gpus * self.read,
            multiply=gpus * self.multiply,
            processors=gpus * self.processors,
        )


A100 = GpuRates(80e9, 2.04e12, 312e12, 108, 1.41e9, 80)
A100_40GB = GpuRates(40e9, 1.555e12, 312e12, 108, 1.41e9, 80)
GPU_RATES = {
    "B200": GpuRates(180e9, 8.0e12, 2250e12, 148, 1.97e9, 100),
    "H200": GpuRates(141e9, 4.8e12, 989e12, 132, 1.83e9, 90),
    "H100": GpuRates(80e9, 3.35e12, 989e12, 132, 1.83e9, 90),
    "H100 NVL": GpuRates(94e9, 3.9e12, 835e12, 132, 1.79e9, 90),
    "H100 PCIe": GpuRates(80e9, 2.0e12, 756e12, 114, 1.76e9, 90),
    "A100": A100,
    "A100 SXM4 40GB": A100_40GB,
    "A100 PCIE 40GB": A100_40GB,
    "A40": GpuRates(48e9, 0.696e12, 150e12, 84, 1.74e9, 86),
    "A10": GpuRates(24e9, 0.6e12, 125e12, 72, 1.7e9, 86),
    "A10G": GpuRates(24e9, 0.6e12, 70e12, 80, 1.71e9, 86),
    "L40S": GpuRates(48e9, 0.864e12, 362e12, 142, 2.52e9, 89),
    "L4": GpuRates(24e9, 0.3e12, 121e12, 58, 2.04e9, 89),
    "RTX A6000": GpuRates(48e9, 0.768e12, 155e12, 84, 1.8e9, 86),
    "RTX 6000 Ada": GpuRates(48e9, 0.96e12, 364e12, 142, 2.5e9, 89),
    "RTX 5090": GpuRates(32e9, 1.79e12, 209e12, 170, 2.41e9, 120),
    "RTX 4090": GpuRates(24e9, 1.01e12, 165e12, 128, 2.52e9, 89),
    "RTX 3090": GpuRates(24e9, 0.936e12, 71e12, 82, 1.7e9, 86),
}
"""Dense rates by a part of the name that nvidia-smi shows; of several parts in a name, the longest counts."""


def rates_of(name: str) -> GpuRates:
    """Returns the rates of the GPU that nvidia-smi calls `name`; an unknown GPU counts as an A100."""
    return known_rates(name) or A100


def known_rates(name: str) -> GpuRates | None:
    """Returns the rates of the GPU that nvidia-smi calls `name`; None if the table lacks it."""
    parts = [part for part in GPU_RATES if f" {part} " in f" {name.replace('-', ' ')} "]
    return GPU_RATES[max(parts, key=len)] if parts else None
