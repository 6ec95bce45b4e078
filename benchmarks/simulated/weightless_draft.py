"""A draft model whose tensors have no memory, which proposes behind texts that it foresees."""

from dataclasses import replace
from typing import Any

import torch
from msgspec import structs

from benchmarks.simulated.weightless import BLOCK_TOKENS, META, UNBOUNDED_TOKENS, weightless_engine
from contracts.messages.sampling import Sampling
from engine.plan import StepPlan, StepResult, Work
from engine.speculation.proposers.draft import RECORDED_TOKENS, DraftModel, DraftProposer
from engine.speculation.proposers.pending_drafts import DeviceDrafts

DRAFTED_TOKEN = 7
"""All tokens of all texts: what is drafted is right, so each text lacks KV of two tokens, the most that is usual."""
GREEDY = Sampling(seed=0, temperature=0.0)


class WeightlessDraft:
    """Proposes `guesses` tokens behind each of `sequences` texts, which then grow by these and one more."""

    def __init__(self, shape: str, sequences: int, guesses: int, text: int, longest: int) -> None:
        blocks = longest // BLOCK_TOKENS
        engine = weightless_engine(shape, sequences * blocks + 1, sequences, longest, guesses=RECORDED_TOKENS - 1)
        draft = DraftModel(
            engine.backend, engine.model, engine.model_config, engine.pool, engine.attention, 0, 0, engine.decode_steps
        )
        self.steps: Any = engine.decode_steps
        self.weights_bytes = engine.model.weights_bytes()
        vocab = engine.model_config.vocab_size
        self._recorded = DraftProposer(draft, vocab, guesses, UNBOUNDED_TOKENS)
        self._unrecorded = DraftProposer(replace(draft, steps=None), vocab, guesses, UNBOUNDED_TOKENS)
        self._came = [DRAFTED_TOKEN] * (guesses + 1)
        tables = [list(range(1 + row * blocks, 1 + (row + 1) * blocks)) for row in range(sequences)]
        self._works = [
            Work(row, 0, [], (table,), GREEDY, tokens=[DRAFTED_TOKEN] * text, propose=guesses)
            for row, table in enumerate(tables)
        ]
        known: Any = DeviceDrafts
        known.known = lambda drafts: [DRAFTED_TOKEN] * len(drafts.tokens)

    def propose(self, *, recorded: bool) -> None:
        proposer = self._recorded if recorded else self._unrecorded
        result = StepResult(0, [self._came] * len(self._works))
        proposer.propose(StepPlan(0, self._works), result, torch.empty(0, device=META))
        self._works = [
            structs.replace(work, tokens=[*(work.tokens or ()), *self._came], output_index=work.output_index + 1)
            for work in self._works
        ]
