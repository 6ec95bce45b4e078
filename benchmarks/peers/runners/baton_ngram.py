"""Runs our engine with n-gram guesses in the same harness as its peers: scheduler and executor in one process."""

from benchmarks.peers.runners.protocol import Prompts, arguments, serve, take_streams

STREAMS = take_streams()

from itertools import count  # noqa: E402

import torch  # noqa: E402

from benchmarks.processes.in_process import Loop, quiet  # noqa: E402
from contracts.ids import AttemptKey  # noqa: E402
from contracts.messages.job import Prompt  # noqa: E402
from contracts.messages.sampling import Limits, Sampling  # noqa: E402
from engine.blocks.manager import BlockManager  # noqa: E402
from engine.executor import Executor  # noqa: E402
from engine.schedule.sequence import Sequence  # noqa: E402
from engine.schedule.speculation import Speculation  # noqa: E402
from engine.speculation.control.controller import DraftController  # noqa: E402
from engine.speculation.proposers.ngram import NGramProposer  # noqa: E402
from engine.start.load import load_engine  # noqa: E402
from infra.config.engine import EngineConfig  # noqa: E402
from pricing.fit import StepFit  # noqa: E402

MAX_DRAFT_TOKENS = 16


def guessing(blocks: BlockManager, fit: StepFit) -> Speculation:
    return Speculation(
        blocks, NGramProposer(), MAX_DRAFT_TOKENS, DraftController(fit, MAX_DRAFT_TOKENS, in_engine=False)
    )


def main() -> None:
    given = arguments()
    torch.set_num_threads(given.threads)
    config = EngineConfig(model=given.model, device="cpu", dtype="bf16", max_model_len=given.longest)
    engine = load_engine(config, quiet)
    loop = Loop(Executor(engine), config, guessing)
    numbers = count()

    def generate(prompts: Prompts, output: int) -> Prompts:
        sequences = []
        for prompt in prompts:
            name = str(next(numbers))  # as a salt too: nothing is found in the cache
            own = Prompt(prompt, len(prompt), salt=name)
            greedy = Sampling(seed=0, temperature=0.0)
            sequence = Sequence(AttemptKey(name, 0, 1), "benchmark", own, float("inf"), greedy, Limits(output))
            loop.scheduler.add(sequence)
            sequences.append(sequence)
        while loop.turn():
            pass
        return [each.tokens[each.prompt_tokens :] for each in sequences]

    serve(STREAMS, ("torch",), generate)


if __name__ == "__main__":
    main()
