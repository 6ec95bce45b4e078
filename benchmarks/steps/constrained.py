"""Measures what a grammar costs: seconds per token with one and without, in one process, interleaved.

    python -m benchmarks.steps.constrained [--model DIR] [--batch 32] [--rounds 5] [--cpu-backend native] [--threads 2]

The model is a random one of 135M parameters, with a byte-level tokenizer of as many ids as it has (49,152), which is
trained on this project's and Python's own sources. Each batch is run three times in turn: *free* answers without a
grammar; *drawn*, each under a JSON schema, where every token is drawn; and *forced*, the same with the tokens that have
to follow taken at once, which is how answers are served. All answers have as many tokens: another object begins
where one is complete. Time counts from where all have their first token. A ratio is *drawn* or *forced* over
*free*, of each round by itself; the last line has their medians. *waited* is the share of time spent waiting for masks.
"""

import sysconfig
import tempfile
import time
from collections.abc import Sequence as Works
from functools import partial
from pathlib import Path
from statistics import median

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from benchmarks.models.random_model import make
from benchmarks.processes import as_a_worker
from benchmarks.processes.in_process import Loop, add, quiet
from benchmarks.report import head, machine, row
from checkpoints.grammars import end_of_text, read_tokenizer
from contracts.messages.sampling import Limits, Sampling
from engine.constraints import Masks
from engine.device import dtype_name
from engine.executor import Executor
from engine.grammars.masks import GrammarMasks
from engine.grammars.preparation import Preparation
from engine.plan import Work
from engine.start.load import load_engine
from infra.config.engine import EngineConfig

VOCABULARY_SIZE = 49152
PROMPT_TOKENS = 8  # tokens
OUTPUT_TOKENS = 48  # tokens of each answer
END_TOKEN = "<|end|>"
ITEM_SCHEMA = """{"type": "object", "properties": {
    "name": {"type": "string", "maxLength": 24}, "quantity": {"type": "integer", "minimum": 0, "maximum": 9999},
    "status": {"enum": ["ordered", "shipped", "delivered"]}, "tags": {"type": "array", "items": {"type": "string",
    "maxLength": 12}, "maxItems": 3}, "address": {"type": "object", "properties": {"street": {"type": "string",
    "maxLength": 30}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}}, "required": ["street", "zip"],
    "additionalProperties": false}}, "required": ["name", "quantity", "status", "tags", "address"],
    "additionalProperties": false, "x-guidance": {"whitespace_pattern": "[ ]"}}"""
ITEMS_GRAMMAR = f'start: item ("\\n" item)*\nitem: %json {ITEM_SCHEMA}'
"""Objects without end, as long answers consist of them."""
SAMPLING_KINDS: dict[str, Sampling] = {
    "free": Sampling(seed=0),
    "drawn": Sampling(
        seed=0, grammar=ITEMS_GRAMMAR, bad_words=((0,),)
    ),  # a word that the grammar has not: nothing is forced
    "forced": Sampling(seed=0, grammar=ITEMS_GRAMMAR),
}


class Waiting(GrammarMasks):
    """Counts the seconds that the engine waited for masks."""

    seconds = 0.0

    def masks(self, works: Works[Work]) -> Masks | None:
        began = time.perf_counter()
        found = super().masks(works)
        self.seconds += time.perf_counter() - began
        return found


def make_model(directory: Path) -> Path:
    make(directory, "135m")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE, special_tokens=[END_TOKEN], initial_alphabet=alphabet, show_progress=False
    )
    packages = Path(sysconfig.get_path("purelib")) / "transformers" / "models"
    sources = [*Path(__file__).parents[2].rglob("*.py"), *Path(sysconfig.get_path("stdlib")).glob("*.py")]
    tokenizer.train([str(path) for path in (*sources, *packages.rglob("*.py"))], trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(f'{{"eos_token": "{END_TOKEN}"}}')
    return directory


class Bench:
    """Runs batches on one engine."""

    def __init__(self, config: EngineConfig, batch: int) -> None:
        directory = Path(config.model)
        self._config = config
        self._batch = batch
        self.engine = load_engine(config, quiet)
        vocabulary = self.engine.model_config.vocab_size
        preparation = Preparation(partial(read_tokenizer, directory, vocabulary), lambda: None)
        self._masks = Waiting(preparation, vocabulary, 1)
        self._ends = end_of_text(directory)

    def run(self, kind: str, seed: int) -> tuple[float, float, float]:
        """Returns ms per token of one answer, tokens that a step gave each, and the share of time waited for masks."""
        loop = Loop(Executor(self.engine, constraints=self._masks), self._config)
        generator = torch.Generator().manual_seed(seed)
        prompts = torch.randint(300, VOCABULARY_SIZE, (self._batch, PROMPT_TOKENS), generator=generator).tolist()
        limits = Limits(OUTPUT_TOKENS, self._ends, OUTPUT_TOKENS)  # the end is not drawn before
        sequences = add(loop, prompts, limits, SAMPLING_KINDS[kind], seed * self._batch)
        while not all(each.emitted for each in sequences):
            loop.turn()
        before, steps, waited = (
            sum(each.emitted for each in sequences),
            loop.scheduler.load().steps,
            self._masks.seconds,
        )
        began = time.perf_counter()
        loop.finish()
        seconds = time.perf_counter() - began
        tokens = sum(each.emitted for each in sequences) - before
        assert all(each.emitted == OUTPUT_TOKENS for each in sequences), "an answer that failed"
        each_step = tokens / self._batch / (loop.scheduler.load().steps - steps)
        return 1000 * seconds * self._batch / tokens, each_step, (self._masks.seconds - waited) / seconds


def main() -> None:
    parser = as_a_worker.options("constrained", __doc__, rounds=5, dtype=False, backend="native")
    parser.add_argument("--model", help="a directory that an earlier run has kept; else one is made and removed")
    parser.add_argument("--keep", type=Path, help="where to keep the model that is made")
    parser.add_argument("--batch", type=int, default=32)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as directory:
        model = given.model or str(make_model(given.keep or Path(directory)))
        config = EngineConfig(
            model=model,
            device=given.device,
            cpu_backend=given.cpu_backend,
            kv_memory=1 << 30,
            max_model_len=PROMPT_TOKENS + OUTPUT_TOKENS,
            max_sequences=given.batch,
        )
        bench = Bench(config, given.batch)
        backend = bench.engine.backend
        print(
            f"{machine(given.threads)}, torch {torch.__version__}; 135M random, {dtype_name(backend.dtype)} on "
            f"{backend.device}, {backend.name} operators; batch {given.batch}, {PROMPT_TOKENS}→{OUTPUT_TOKENS} tokens"
        )
        print(head("round", *(f"{kind} ms/token, tokens/step, waited" for kind in SAMPLING_KINDS)))
        ratios: dict[str, list[float]] = {kind: [] for kind in SAMPLING_KINDS}
        for index in range(-1, given.rounds):  # the first round warms up
            found = {kind: bench.run(kind, seed=index + 1) for kind in SAMPLING_KINDS}
            if index >= 0:
                cells = [f"{took:.2f}, {each:.2f}, {100 * waited:.1f}%" for took, each, waited in found.values()]
                print(row(index + 1, *cells), flush=True)
                for kind, (took, _, _) in found.items():
                    ratios[kind].append(took / found["free"][0])
        print(", ".join(f"{kind} / free: {median(ratios[kind]):.3f}" for kind in SAMPLING_KINDS if kind != "free"))


if __name__ == "__main__":
    main()
