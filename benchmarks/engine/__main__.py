"""Measures tokens per second of scheduler and executor, without services, beside the limits of the machine.

    python -m benchmarks.engine --model DIR [--sweep] [--profile] [--threads 2] [--rounds 3]
    python -m benchmarks.engine --shape llama-3.1-8b --device cuda [--json FILE]
    python -m benchmarks.engine --kinds all [--threads 2] [--rounds 20]

A workload `n x i→o` is n requests of i prompt tokens and o greedy output tokens, all there at the start. *prompt* is
prompt tokens over the time until the last first token; *output* is all output tokens over all time, prompts included.
*limit* is by the floor of the time (`benchmarks/limits/floor.py`) and the machine's own rates, measured before and
after each workload; *% of limit* compares whole times.

With `--shape` the weights are random numbers made on the device, and the figures are those of a GPU: see
`benchmarks/engine/shaped.py` and `benchmarks/engine/shaped_table.py`. With `--kinds` they are decode steps of quantized
weights, experts and latent attention on this processor: see `benchmarks/engine/kinds.py`.
"""

import argparse
import os
import platform
import sys
from pathlib import Path
from statistics import median
from typing import get_args

import torch

from benchmarks.engine import kinds, shaped_table
from benchmarks.engine.native_time import NativeTime
from benchmarks.engine.shaped import Shaped
from benchmarks.limits.floor import Timing, Work, floor, work_of
from benchmarks.limits.machine import GIBIBYTE_BYTES, Machine, measure, read_rate
from benchmarks.limits.workloads import DECODE_SWEEP, PROMPT_SWEEP, WORKLOADS, Workload
from benchmarks.models.shapes import SHAPES
from benchmarks.processes import as_a_worker, in_process
from benchmarks.report import head, row
from checkpoints.model_location import locate
from contracts.errors import ConfigError
from contracts.kinds import Quantization
from engine.device import dtype_name
from engine.executor import Executor
from engine.model.checkpoint.read_config import read_config
from engine.start.load import load_engine
from engine.start.sizing import step_tokens
from infra.config.engine import EngineConfig


class Bench:
    """Measures one loaded model on the machine that it runs on."""

    def __init__(self, config: EngineConfig, executor: Executor, native: NativeTime, rounds: int) -> None:
        self.executor = executor
        self.work: Work = work_of(executor.engine.model_config, executor.engine.backend.dtype, config.quantization)
        self._config = config
        self._native = native
        self._rounds = rounds
        self._measured = [self._measure()]

    def header(self, model: str) -> list[str]:
        backend, machine = self.executor.engine.backend, self.machine
        return [
            f"{machine.name}, {machine.threads} threads; Python {platform.python_version()}, torch "
            f"{torch.__version__}; {model}, {dtype_name(backend.dtype)} on {backend.device}, "
            f"{backend.name} operators, quantization {self._config.quantization}, median of {self._rounds}",
            f"memory {machine.read / 1e9:.1f} GB/s over {self.work.bytes >> 20} MiB, as much as the weights; "
            f"{read_rate(backend.device, GIBIBYTE_BYTES) / 1e9:.1f} GB/s over 1 GiB; "
            f"matrix product {machine.multiply / 1e9:.0f} GFLOP/s",
        ]

    def run(self, workload: Workload) -> tuple[Timing, Timing, float]:
        timings, outside = [], []
        vocabulary = self.executor.engine.model_config.vocab_size
        for index in range(-1, self._rounds):  # the first round warms up
            inside = self._native.seconds
            output = workload.output if index >= 0 else min(2, workload.output)
            prompts = workload.prompts(vocabulary, seed=index)
            timing, _ = in_process.serve(self.executor, self._config, prompts, output)
            if index >= 0:
                timings.append(timing)
                outside.append(1 - (self._native.seconds - inside) / timing.total)
        self._measured.append(self._measure())
        machine = Machine.best(self._measured[-2:])  # just before and just after
        middle = sorted(timings, key=lambda each: each.total)[len(timings) // 2]
        return (
            middle,
            floor(workload, machine, self.work, step_tokens(self._config, self.executor.engine.backend.device)),
            median(outside),
        )

    @property
    def machine(self) -> Machine:
        return Machine.best(self._measured)

    def _measure(self) -> Machine:
        backend = self.executor.engine.backend
        return measure(backend.device, backend.dtype, self.work.bytes)


def table(bench: Bench, workloads: list[Workload], profile: bool) -> None:
    columns = "workload", "prompt tok/s", "limit", "output tok/s", "limit", "% of limit"
    print(head(*columns, *(["outside native"] if profile else [])))
    for workload in workloads:
        timing, least, outside = bench.run(workload)
        prompts, tokens = workload.requests * workload.prompt, workload.requests * workload.output
        rates = f"{prompts / timing.prompts:.0f}", f"{prompts / least.prompts:.0f}"
        outputs = f"{tokens / timing.total:.1f}", f"{tokens / least.total:.1f}"
        shares = [f"{100 * least.total / timing.total:.0f}", *([f"{100 * outside:.0f}%"] if profile else [])]
        print(row(workload, *rates, *outputs, *shares), flush=True)


def fitting(workloads: tuple[Workload, ...], longest: int) -> list[Workload]:
    for workload in workloads:
        if workload.longest > longest:
            print(f"{workload} is left out: the model's context is {longest} tokens")
    return [workload for workload in workloads if workload.longest <= longest]


def main() -> int:
    given = options()
    return as_a_worker.run(lambda: measure_engine(given), given.threads)


def measure_engine(given: argparse.Namespace) -> None:
    """Prints all tables. Raises `BatonError` for a wrong model or setting."""
    _check_options(given)
    if given.shape:
        run_shape(given)
        return
    if given.kinds:
        kinds.measure(kinds.chosen(given.kinds), (1, 8), given.rounds, given.threads)
        return
    own = read_config(locate(given.model, in_process.quiet)).max_model_len
    measured = (*WORKLOADS, *DECODE_SWEEP, *PROMPT_SWEEP) if given.sweep else WORKLOADS
    config = EngineConfig(
        model=given.model,
        device=given.device,
        dtype=given.dtype,
        cpu_backend=given.cpu_backend,
        quantization=given.quantization,
        max_model_len=max((each.longest for each in measured if each.longest <= own), default=own),
    )
    native = NativeTime()
    with native.watching():
        executor = Executor(load_engine(config, in_process.quiet))
    bench = Bench(config, executor, native, given.rounds)
    profile = given.profile and executor.engine.backend.name == "native"
    print("\n".join(bench.header(given.model)))
    if given.profile and not profile:
        print("--profile says nothing here: there are no native operators")
    table(bench, fitting(WORKLOADS, own), profile)
    for sweep in (DECODE_SWEEP, PROMPT_SWEEP) if given.sweep else ():
        print()
        table(bench, fitting(sweep, own), profile)


def run_shape(given: argparse.Namespace) -> None:
    """Prints the tables of a shape, and writes JSON where asked. Raises `BatonError` where it cannot be loaded."""
    engine = Shaped(given.shape, given.device, given.dtype, given.quantization)
    print(engine.header())
    decoded, read = shaped_table.decodes(engine), shaped_table.reads(engine)
    if given.profile:
        shaped_table.kernels(decoded, read)
    if given.json:
        shaped_table.write_json(Path(given.json), engine, decoded, read)


def _check_options(given: argparse.Namespace) -> None:
    if given.json and not os.access(Path(given.json).resolve().parent, os.W_OK):
        raise ConfigError("--json", given.json, "its directory is not there or cannot be written to")
    if given.json and not given.shape:
        raise ConfigError("--json", given.json, "it is written with --shape only")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__.partition("\n")[0])
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--model", default="", help="model directory or hub id")
    which.add_argument("--shape", default="", choices=list(SHAPES), help="random weights of a well-known model's shape")
    which.add_argument("--kinds", default="", help=f"all, or some of {', '.join(kinds.KINDS)}")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto", choices=("auto", "fp32", "bf16", "fp16"))
    parser.add_argument("--cpu-backend", default="auto", choices=("auto", "native", "torch"))
    parser.add_argument("--quantization", default="none", choices=get_args(Quantization))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=3, help="runs of which the median is shown")
    parser.add_argument("--sweep", action="store_true", help="also batches of 1 to 64, and prompts of 128 to 4096")
    parser.add_argument("--json", default="", metavar="FILE", help="with --shape: file for the figures, as JSON")
    profile = "also the share of time outside native operators; with --shape on a GPU, the time by kernel"
    parser.add_argument("--profile", action="store_true", help=profile)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
