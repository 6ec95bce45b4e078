"""Runs our engine: scheduler and executor in one process."""

import torch

from benchmarks.peers.runners.protocol import Arguments, Prompts, Runner
from benchmarks.processes.drafting import drafting
from benchmarks.processes.in_process import Loop, add, answers, quiet, serve
from contracts.messages.sampling import Limits
from engine.backends.native.compiling.build import chosen_target
from engine.executor import Executor
from engine.start.load import load_engine
from infra.config.engine import EngineConfig


def load(given: Arguments, *, ngram: bool) -> Runner:
    torch.set_num_threads(given.threads)
    config = EngineConfig(
        model=given.model,
        device="cpu",
        dtype=given.dtype,  # type: ignore[arg-type]
        max_model_len=given.longest,
        quantization=given.quantization,  # type: ignore[arg-type]
    )
    executor = Executor(load_engine(config, quiet))
    loop = Loop(executor, config, drafting("ngram"))  # one for all requests, as its controller learns

    def generate(prompts: Prompts, output: int) -> Prompts:
        if not ngram:
            return serve(executor, config, prompts, output)[1]
        sequences = add(loop, prompts, Limits(output))
        loop.finish()
        return answers(sequences)

    return Runner(("torch",), generate, " ".join(chosen_target()))
