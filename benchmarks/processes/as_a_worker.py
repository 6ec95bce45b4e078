"""Runs a measurement in a process that was started as workers are."""

import os
import sys
from collections.abc import Callable

import torch

from contracts.errors import BatonError
from launcher.deployment import SERVICE_ENVIRONMENT


def run(measure: Callable[[], None], threads: int) -> int:
    """Measures with so many threads; returns 2, and prints one sentence, where a model or a setting is wrong.

    A process that was started otherwise begins again first: OpenMP reads its environment before Python runs.
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
