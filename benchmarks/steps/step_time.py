"""Predicts the time of steps on GPUs from data sheets and counts of the compiled kernels. Needs no GPU.

    python -m benchmarks.steps.step_time [--gpus H100,A100] [--shapes llama-3.1-8b]

`pricing/roofline/gpu_step_time.py` has the formula. The floor is what the data sheet allows: bytes over bandwidth, or
operations over the matrix rate. Where the prediction is far above it, a kernel issues too many instructions, or the
host is late.
"""

import argparse
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.limits.floor import work_of
from benchmarks.models.shapes import SHAPES, write_config
from benchmarks.report import head, row
from engine.model.checkpoint.read_config import read_config
from engine.model.config import ModelConfig, heads_of
from pricing.roofline.gpu_rates import GPU_RATES
from pricing.roofline.gpu_step_time import KVFormat, ModelShape, WeightFormat, floor_seconds, step_seconds
from pricing.step_costs.steps import StepWork, pairs_of

LAUNCHES_PER_LAYER, OTHER_LAUNCHES = 7, 3
"""As `benchmarks.steps.host_time` counts them: 227 in a step of 32 layers."""
FORMATS: dict[str, tuple[WeightFormat, float, KVFormat, float]] = {
    "bf16": ("plain", 2.0, "plain", 1.0),
    "fp8": ("fp8", 1.0, "plain", 1.0),
    "int4": ("int4", 0.5625, "plain", 1.0),
    "bf16, KV in fp8": ("plain", 2.0, "fp8", 0.515),
}
"""Format of weights and its bytes, format of KV and its part of the plain format's bytes; scales included."""
STEPS = {
    "decode 1 behind 2,048": (StepWork(sequences=1, context=2048), True),
    "decode 32 behind 2,048": (StepWork(sequences=32, context=32 * 2048), True),
    "verify 32 x 5 behind 2,048": (StepWork(sequences=32, context=32 * 2048, rows=32 * 4), True),
    "decode 32 and a chunk of 512": (
        StepWork(512, pairs_of(2048, 512), sequences=32, context=32 * 2048),
        False,
    ),
    "prompt of 8,192": (StepWork(8192, pairs_of(0, 8192)), False),
}
"""Work of a step, and whether it is recorded."""


def shape_of(name: str, weights: str) -> ModelShape:
    with TemporaryDirectory() as directory:
        write_config(Path(directory), name)
        config = read_config(Path(directory))
    assert isinstance(config, ModelConfig)
    work, heads = work_of(config, torch.bfloat16), heads_of(config.layers[0])
    weight_format, weight_bytes, kv_format, kv_share = FORMATS[weights]
    linear = work.every + work.sampled
    return ModelShape(
        parameters=linear + work.head,
        weights_bytes=linear * weight_bytes + work.head * work.head_width,
        token_bytes=work.token_bytes * kv_share,
        pair_width=2 * heads.heads * heads.head_dim * len(config.layers),
        launches=LAUNCHES_PER_LAYER * len(config.layers) + OTHER_LAUNCHES,
        weights=weight_format,
        kv=kv_format,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.steps.step_time", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--gpus", default="H100,A100,RTX 4090", help=f"of {', '.join(GPU_RATES)}")
    parser.add_argument("--shapes", default="llama-3.1-8b", help=f"of {', '.join(SHAPES)}")
    given = parser.parse_args()
    print(head("shape", "format", "GPU", "step", "predicted, ms", "floor, ms", "predicted / floor"))
    for shape, weights, gpu in product(given.shapes.split(","), FORMATS, given.gpus.split(",")):
        model, rates = shape_of(shape, weights), GPU_RATES[gpu]
        for name, (work, recorded) in STEPS.items():
            predicted, least = step_seconds(model, work, rates, recorded), floor_seconds(model, work, rates)
            print(
                row(
                    shape,
                    weights,
                    gpu,
                    name,
                    f"{predicted * 1e3:.2f}",
                    f"{least * 1e3:.2f}",
                    f"{predicted / least:.2f}",
                )
            )


if __name__ == "__main__":
    main()
