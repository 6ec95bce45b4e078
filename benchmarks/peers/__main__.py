"""Measures our engine beside llama.cpp, vLLM's CPU build and transformers, in one run: `python -m benchmarks.peers`.

Missing peers are installed first, each into an environment of its own. Then all load the same random model and run the
same prompts, greedily, on as many threads, in interleaved rounds; one system computes at a time.
`benchmarks.peers.serve` compares servers, over HTTP.
"""

import os
import sys
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import torch
from msgspec import Meta, Struct

from benchmarks.limits.floor import work_of
from benchmarks.limits.int8_rate import int8_rate
from benchmarks.limits.machine import Machine, measure
from benchmarks.limits.workloads import WORKLOADS
from benchmarks.peers.model import Model, random_model
from benchmarks.peers.process import OURS, PLAIN, loaded
from benchmarks.peers.rounds import run_rounds
from benchmarks.peers.setup import PEERS, Peer, directory_of, for_avx2, set_up
from benchmarks.peers.table import Measured, table
from benchmarks.processes.children import exit_status
from contracts.errors import ConfigError
from contracts.kinds import Positive, Quantization
from engine.backends.native.compiling.build import TARGET_VARIABLE
from engine.device import DTYPES_BY_NAME
from engine.model.checkpoint.read_config import read_config
from engine.model.config import ExpertsMLP
from infra.cli import parse_or_exit
from launcher.stages import StageDisplay

AVX2_ONLY = {
    TARGET_VARIABLE: "-march=x86-64-v3",  # AVX2, FMA, F16C and BMI2: Haswell, Zen and later
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}
"""Environment variables that keep our operators, PyTorch, oneDNN and MKL to AVX2."""
QUANTIZING_PEERS = {"llama.cpp"}
"""Peers that are measured with quantized weights."""


class PeersConfig(Struct, frozen=True, kw_only=True):
    """Measures tokens per second of Baton's engine and of its peers on a CPU, in interleaved rounds of one run."""

    directory: Annotated[
        str, Meta(description="where the peers are installed, and their logs; empty: this user's cache")
    ] = ""
    only: Annotated[
        str, Meta(description="some of llama.cpp, vllm, transformers with commas between them; empty: all")
    ] = ""
    model: Annotated[str, Meta(description="directory of a Llama or a Mixtral; empty: a random one of --shape")] = ""
    shape: Annotated[
        Literal["135m", "500m", "moe-1b"],
        Meta(description="of the random model: 135M or 500M parameters, or a mixture that uses 0.2B of 1.0B"),
    ] = "135m"
    quantization: Annotated[
        Literal["none", "int8", "int4"],
        Meta(
            description="weights of ours and of llama.cpp (Q8_0, Q4_0); beside them ours with plain weights, and "
            "neither vLLM nor transformers"
        ),
    ] = "none"
    dtype: Annotated[Literal["bf16", "fp32"], Meta(description="number format of weights: bf16 or fp32")] = "bf16"
    instructions: Annotated[
        Literal["native", "avx2"],
        Meta(
            description="of the processor that are used: native, all; avx2: our operators and llama.cpp are compiled "
            "for AVX2 and FMA, as on processors that have no AVX-512; with --only llama.cpp"
        ),
    ] = "native"
    threads: Annotated[int, Meta(ge=0, description="threads of each; 0: one for each core")] = 0
    rounds: Annotated[Positive, Meta(description="rounds of which the median is shown")] = 5


def chosen(only: str, quantization: Quantization = "none") -> list[Peer]:
    """Returns the peers that `--only` names, all of them by default. Raises `ConfigError`."""
    known = {peer.name: peer for peer in PEERS if quantization == "none" or peer.name in QUANTIZING_PEERS}
    names = [name.strip() for name in only.split(",")] if only else list(known)
    for name in names:
        if name not in known:
            raise ConfigError("--only", only, f"{name!r} is none of {', '.join(known)}")
    return [known[name] for name in names]


def compare(config: PeersConfig, stages: StageDisplay) -> None:
    """Installs, measures and prints. Raises `BatonError`."""
    peers = chosen(config.only, config.quantization)
    if config.instructions == "avx2":
        peers = [for_avx2(peer) for peer in peers]
        os.environ.update(AVX2_ONLY)  # before a library looks at it, and for the processes that are started
    threads = config.threads or len(os.sched_getaffinity(0))
    directory = directory_of(config.directory)
    for peer in peers:
        set_up(directory, peer, stages)
    path = Path(config.model).expanduser().resolve() if config.model else random_model(directory, config.shape, stages)
    shape = read_config(path)
    workloads = [each for each in WORKLOADS if each.longest <= shape.max_model_len]
    if not workloads:
        raise ConfigError("--model", config.model, f"its context of {shape.max_model_len} tokens is too short")
    model = Model(
        path, config.dtype, shape.vocab_size, max(each.longest for each in workloads), config.quantization
    ).with_files(directory, peers, stages)
    work = work_of(shape, DTYPES_BY_NAME[config.dtype], config.quantization)
    machines: list[Machine] = []
    torch.set_num_threads(threads)

    def between(what: str, percent: int) -> None:
        stages.show("measuring", what, percent)
        machine = measure(torch.device("cpu"), DTYPES_BY_NAME[config.dtype], work.bytes)
        if config.quantization != "none":  # products of bytes may be faster
            machine = replace(machine, multiply=max(machine.multiply, int8_rate()))
        machines.append(machine)

    plain = [PLAIN] if config.quantization != "none" else []
    with ExitStack() as stack:
        # One after the other: loading takes all cores.
        systems = loaded(stack, (OURS, *plain, *peers), directory, model, threads, stages)
        results = run_rounds(systems, workloads, config.rounds, shape.vocab_size, between)
    stages.show("measuring", "done")
    stages.settle()
    measured = Measured(
        results,
        systems,
        workloads,
        config.rounds,
        Machine.best(machines),
        work,
        config.dtype,
        config.quantization,
        experts=isinstance(shape.layers[0].mlp, ExpertsMLP),
    )
    print("\n".join(table(measured)))
    for each in WORKLOADS:
        if each not in workloads:
            print(f"{each} is left out: the model's context is {shape.max_model_len} tokens")


def main() -> int:
    config = parse_or_exit(PeersConfig, "benchmarks.peers")
    return exit_status(partial(compare, config))


if __name__ == "__main__":
    sys.exit(main())
