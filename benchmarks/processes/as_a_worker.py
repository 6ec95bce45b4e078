"""Runs a measurement in a process that was started as workers are; options that such measurements share."""

import argparse
import os
import sys
from collections.abc import Callable

import torch

from contracts.errors import BatonError
from launcher.deployment import SERVICE_ENVIRONMENT


def run(measure: Callable[[], None], threads: int) -> int:
    """Measures on `threads` threads; returns 2, and prints a sentence, where a model or a setting is wrong.

    A process with another environment starts again first: OpenMP reads its environment before Python runs.
    """
    if not SERVICE_ENVIRONMENT.keys() <= os.environ.keys():
        os.execve(sys.executable, [*sys.orig_argv], {**SERVICE_ENVIRONMENT, **os.environ})
    torch.set_num_threads(threads)
    try:
        measure()
    except BatonError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def options(
    name: str, description: str, rounds: int, *, dtype: bool = True, backend: str = ""
) -> argparse.ArgumentParser:
    """Makes a parser with `--device`, `--rounds`, `--threads`, and where wanted `--dtype` and `--cpu-backend`."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.steps.{name}", description=description.partition("\n")[0]
    )
    parser.add_argument("--device", default="cpu", help="cpu, or cuda")
    parser.add_argument("--rounds", type=int, default=rounds, help="the median of these is shown")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    if dtype:
        parser.add_argument("--dtype", default="bf16", choices=("fp32", "bf16", "fp16"))
    if backend:
        parser.add_argument("--cpu-backend", default=backend, choices=("auto", "native", "torch"))
    return parser
