"""A random model with a real tokenizer, and a batch of answers of it through scheduler and executor."""

import shutil
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from llguidance import LLTokenizer
from transformers import LlamaConfig, Qwen2Config

from checkpoints.grammars import end_of_text, read_tokenizer
from contracts.ids import AttemptKey
from contracts.messages.job import Prompt
from contracts.messages.sampling import Finish, Limits, Sampling
from contracts.scores import TokenScore
from engine.blocks.manager import BlockManager
from engine.engine import Engine
from engine.executor import Executor
from engine.grammars.masks import GrammarMasks
from engine.grammars.preparation import Preparation
from engine.schedule import sequence as sequences
from engine.schedule.scheduler import Scheduler, SchedulerLimits
from engine.schedule.speculation import Speculation
from tests.reference import build_model
from tests.variants import SIZES

DEMO = Path(__file__).resolve().parents[3] / "demo_model" / "weights"
VOCABULARY = 2048
ENDS = end_of_text(DEMO)
PROMPT = list(range(100, 140))


class Answer(NamedTuple):
    """What became of a sequence."""

    tokens: list[int]
    finish: Finish | None
    failed: str
    steps: int  # in which it got tokens
    scores: tuple[TokenScore, ...] = ()

    @property
    def text(self) -> str:
        """Without the token that ends it."""
        ids = [token for token in self.tokens if token not in ENDS]
        return TOKENIZER.decode_bytes(ids).decode()


LOOK_PERIOD_S = 0.5  # s that a batch waits for a grammar before it looks again, as an engine loop does
NOTHING = Answer([], None, "", 0)
TOKENIZER = read_tokenizer(DEMO, VOCABULARY)
CLOSING = tuple(
    token
    for token in range(VOCABULARY)
    if token not in ENDS and set('"]}') & (signs := set(TOKENIZER.decode_str([token]))) and not signs & set("[{:")
)


def random_model(directory: Path, seed: int = 0, window: int = 0) -> Path:
    """Weights that nobody trained, with the demo model's tokenizer: what it says is noise.

    `window`: tokens that its second layer sees; 0: all.
    """
    sizes = {**SIZES, "vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2}
    sizes |= {"max_position_embeddings": 2048, "eos_token_id": ENDS[0]}
    windows = {"use_sliding_window": True, "sliding_window": window, "max_window_layers": 1}
    build_model(directory, Qwen2Config(**sizes, **windows) if window else LlamaConfig(**sizes), seed=seed)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / name, directory / name)
    return directory


class WakingMasks(GrammarMasks):
    """Masks whose preparation wakes a batch."""

    def __init__(self, read: Callable[[], LLTokenizer]) -> None:
        self.woken = threading.Event()
        super().__init__(Preparation(read, self.woken.set), VOCABULARY, threads=1)


def masks_of(directory: Path) -> WakingMasks:
    return WakingMasks(partial(read_tokenizer, directory, VOCABULARY))


def grammar_sampling(grammar: str, seed: int = 0, temperature: float = 1.0, bias: float = 4.0) -> Sampling:
    """`bias` is what quotes and brackets that close are likelier by, so that free texts end. Greedy ones may say one
    thing for ever, so to them it costs to say it again."""
    biases = tuple((token, bias) for token in CLOSING) if bias else ()
    again = 0.0 if temperature else 0.1
    return Sampling(seed=seed, temperature=temperature, grammar=grammar, logit_bias=biases, frequency_penalty=again)


class Batch:
    """Answers questions together. `blocks` of the pool: fewer than all need, and some are preempted."""

    def __init__(
        self,
        engine: Engine,
        executor: Executor,
        blocks: int = 0,
        sequences: int = 256,
        speculation: Callable[[BlockManager], Speculation] | None = None,
    ) -> None:
        self.executor = executor
        constraints = executor._constraints
        assert isinstance(constraints, WakingMasks)
        self._woken, self._preparation = constraints.woken, constraints.preparation
        manager = BlockManager(engine.pool.spec, [blocks or engine.pool.counts[0]])
        self.scheduler = Scheduler(
            manager,
            SchedulerLimits(
                max_batch_tokens=1024,
                max_sequences=sequences,
                max_model_len=engine.model_config.max_model_len,
                max_in_flight=engine.launch_depth,
            ),
            readiness=constraints.preparation,
            speculation=speculation(manager) if speculation is not None else None,
        )
        self._answers: dict[int, Answer] = {}
        self._count = 0

    def ask(self, sampling: Sampling, limits: Limits, output: Sequence[int] = ()) -> sequences.Sequence:
        """Adds a sequence; `output` is what earlier attempts have emitted."""
        self._count += 1
        prompt = Prompt([*PROMPT, *output], len(PROMPT))
        asked = sequences.Sequence(AttemptKey(f"r{self._count}", 0, 1), "gateway", prompt, 1e9, sampling, limits)
        self.scheduler.add(asked)
        return asked

    def prepare(self, asked: Sequence[sequences.Sequence]) -> None:
        """Waits until all of `asked` are ready, so that from then on nothing depends on time."""
        for each in asked:
            ids = each.id, each.sampling.grammar, each.tokens, each.prompt_tokens
            while not self._preparation.ready(*ids):
                self._woken.wait(LOOK_PERIOD_S)
                self._woken.clear()

    def turn(self) -> bool:
        """Plans, launches and collects as a worker does; False: nothing is left to do."""
        self._woken.clear()
        flying = 0
        while flying < self.executor.engine.launch_depth and (plan := self.scheduler.plan(0.0)) is not None:
            self.executor.move(self.scheduler.take_moves())
            self.executor.launch(plan)
            flying += 1
        for _ in range(flying):
            for progress in self.scheduler.apply(self.executor.collect(), 0.0):
                before = self._answers.get(progress.sequence.id, NOTHING)
                scores = before.scores + tuple(progress.scores or ())
                self._answers[progress.sequence.id] = Answer(
                    before.tokens + progress.tokens, progress.finish, progress.failed, before.steps + 1, scores
                )
        load = self.scheduler.load()
        left = load.running + load.waiting > 0
        if left and not flying:
            self._woken.wait(LOOK_PERIOD_S)
        return flying > 0 or left

    def run(self) -> list[Answer]:
        """Runs until all have ended; returns the answers in the order in which they were asked for."""
        while self.turn():
            pass
        self.scheduler.check_invariants()
        return [answer for _, answer in sorted(self._answers.items())]


def ask_all(engine: Engine, directory: Path, samplings: Sequence[Sampling], max_tokens: int) -> list[Answer]:
    """Answers all at once."""
    batch = Batch(engine, Executor(engine, constraints=masks_of(directory)))
    for sampling in samplings:
        batch.ask(sampling, Limits(max_tokens, ENDS))
    return batch.run()
