"""Runs our engine in the same harness as its peers: scheduler and executor in one process."""

from benchmarks.peers.runners.protocol import Prompts, arguments, serve, take_streams

STREAMS = take_streams()

import torch  # noqa: E402

from benchmarks.processes import in_process  # noqa: E402
from engine.backends.native.build import chosen_target  # noqa: E402
from engine.executor import Executor  # noqa: E402
from engine.start.load import load_engine  # noqa: E402
from infra.config.engine import EngineConfig  # noqa: E402


def main() -> None:
    given = arguments()
    torch.set_num_threads(given.threads)
    config = EngineConfig(
        model=given.model,
        device="cpu",
        dtype=given.dtype,  # type: ignore[arg-type]
        max_model_len=given.longest,
        quantization=given.quantization,  # type: ignore[arg-type]
    )
    executor = Executor(load_engine(config, in_process.quiet))

    def generate(prompts: Prompts, output: int) -> Prompts:
        return in_process.serve(executor, config, prompts, output)[1]

    serve(STREAMS, ("torch",), generate, " ".join(chosen_target()))


if __name__ == "__main__":
    main()
