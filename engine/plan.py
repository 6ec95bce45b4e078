"""The plan of a step and its result: data without tensors, which ranks of one model can share."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

from contracts.messages.sampling import Sampling
from contracts.scores import Scores

PENDING_TOKEN = -1
"""Stands for the token sampled by the previous step, which the host has not seen yet."""

PENDING_DRAFT = -2
"""Stands for a draft token of the executor's proposer, which the host has not seen yet."""

NULL_BLOCK = 0
"""The block of each KV group that belongs to no sequence: it pads block tables, and is never written."""


class PromptRows(Struct, frozen=True, array_like=True):
    """Requests scores of the prompt's tokens that follow a work's own tokens."""

    first: int  # the first of the work's tokens whose successor is scored
    targets: list[int]  # the successors, in order
    top: int  # alternatives to report for each


class Work(Struct, frozen=True, array_like=True):
    """One sequence's share of a step: computes `token_ids` at positions from `start` on.

    A sequence with several samples has no `PENDING_TOKEN` until they are collected.
    """

    sequence: int  # its id
    start: int
    token_ids: Sequence[int]
    blocks: tuple[list[int], ...]  # by KV group, a block table long enough for the last position
    sampling: Sampling | None = None  # of the last row; None: it is not sampled
    samples: tuple[int, ...] = (0,)  # numbers of the samples, each drawn once from the same logits
    output_index: int = 0  # of the sampled token in the output; keys its randomness
    tokens: Sequence[int] | None = None  # the sequence's own array of all known tokens; None unless the
    # draw looks back or draft tokens are asked for
    prompt_tokens: int = 0  # leading `tokens` from the client; the others are output
    banned: tuple[int, ...] = ()  # ids that may not be drawn: the output is still too short to end
    prompt_rows: PromptRows | None = None
    adapter: str = ""  # digest of the adapter whose weights are added to the model's; empty: none
    proposed: tuple[int, ...] = ()
    """Draft tokens: the last of `token_ids`, not part of the text yet. The work then has one sample, and rows of logits
    for its last own token and for each draft token, sampled as if the draft tokens on its path had been drawn."""
    parents: tuple[int, ...] = ()
    """Parents of the draft tokens of a tree: an earlier draft token, by index, or -1, the last own token. Siblings
    differ. Empty: a chain."""
    propose: int = 0  # number of tokens that the executor's proposer drafts after this step
    state: bytes = b""  # fp32 `[hidden]`, of the token before `start`, if another worker has handed it over
    returns_state: bool = False  # whether the hidden state of its last token, or its pooled result, is requested


class BlockMove(Struct, frozen=True, array_like=True):
    """Moves one block of one KV group, in all its layers: within the pool, out to the host tier, or back in."""

    kind: Literal["copy", "out", "in"]
    group: int  # index of the KV group
    source: int  # a block of the pool; for "in" a slot of the host tier
    target: int  # a block of the pool; for "out" a slot of the host tier


class TreeKVMoves(NamedTuple):
    """Moves of one sequence's accepted tree KV from the order of the tree to the order of the text."""

    blocks: tuple[list[int], ...]  # by KV group, its block table
    places: Sequence[tuple[int, int]]  # (from, to), positions of its tokens


class StepPlan(Struct, frozen=True, array_like=True):
    """One step. A chunk of a prompt and a decode differ only in length."""

    step: int
    works: list[Work]


class GrammarRefusal(Struct, frozen=True, array_like=True):
    """The reason why a work cannot continue with its grammar."""

    why: str
    by_worker: bool = False  # a fault of this worker: another worker may succeed


class Proposal(Struct, frozen=True, array_like=True):
    """Draft tokens to follow a sequence's tokens."""

    tokens: list[int]  # or all `PENDING_DRAFT`
    evidence: int = 0  # tokens of the match that the first draft token continues; 0: unknown
    parents: tuple[int, ...] = ()  # as in `Work.parents`

    def first(self, count: int) -> "Proposal":
        """Returns the first `count` draft tokens; parents come before their children."""
        if count >= len(self.tokens):
            return self
        return Proposal(self.tokens[:count], self.evidence, self.parents[:count])


NO_PROPOSAL = Proposal([])


class StepResult(Struct, frozen=True, array_like=True):
    """Result of a plan."""

    step: int
    tokens: list[list[int]]
    """By work, the sampled tokens: one for each sample, in order. A single sample may have more: accepted draft
    tokens and the token drawn after them, and tokens forced by its grammar."""
    failed: list[int] = []  # indices of works whose logits were not finite
    none_left: list[int] = []  # indices of works whose every token is forbidden
    refused: dict[int, GrammarRefusal] = {}  # by index of a work
    scores: dict[int, list[Scores]] = {}  # by index of a work, of its draws: one for each sample
    prompt_scores: dict[int, Scores] = {}  # by index of a work, of the tokens behind each of its own
    accepted: dict[int, list[int]] = {}
    """By index of a work with draft tokens: the indices of accepted draft tokens, each the parent of the next."""
    proposed: dict[int, Proposal] = {}  # by index of a work, draft tokens behind its tokens; see `Work.propose`
    states: dict[int, bytes] = {}  # by index of a work, the hidden state of its last token, or its pooled result, fp32
    proposing: float = 0.0  # seconds of the executor's proposer
    repeats: int = 1
    """Steps in a row, each of which computed the token that the one before had sampled; see `Scheduler.repeat`."""
