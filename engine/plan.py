"""Holds what a step is asked to do and what it answers: data without tensors, which ranks of one model can share."""

from typing import Literal

from msgspec import Struct

from contracts.messages.sampling import Sampling
from contracts.scores import Scores

PENDING_TOKEN = -1
"""A token id that stands for "the token sampled by the step before", which the host has not seen yet."""

NULL_BLOCK = 0
"""The block of each KV group that nobody gets: it pads block tables, and nothing is ever written to it."""


class PromptRows(Struct, frozen=True, array_like=True):
    """Asks how likely the prompt's tokens behind some of a work's own tokens are."""

    first: int  # of the work's tokens the first whose successor is asked for
    targets: list[int]  # the tokens behind that one and those after it, in order
    top: int  # alternatives that are told of each


class Work(Struct, frozen=True, array_like=True):
    """Asks for one sequence's share of a step: compute `token_ids` at positions from `start` on.

    A sequence with several samples gets no PENDING token before they were collected.
    """

    sequence: int  # its id
    start: int
    token_ids: list[int]
    blocks: tuple[list[int], ...]  # of each KV group the block table, long enough for the last position
    sampling: Sampling | None = None  # how the last row is sampled; None: it is not
    samples: tuple[int, ...] = (0,)  # numbers of the samples, each drawn once from the same logits
    output_index: int = 0  # of the sampled token in its sequence's output: the randomness is keyed by it
    tokens: list[int] | None = None  # if the draw looks back, or guesses are asked for: the sequence's own list of all
    # its tokens known so far
    prompt_tokens: int = 0  # how many of `tokens` are the client's; the others are output
    banned: tuple[int, ...] = ()  # ids that are not drawn now: the output is still too short to end
    prompt_rows: PromptRows | None = None
    adapter: str = ""  # digest of the adapter whose weights are added to the model's; empty: none
    proposed: tuple[int, ...] = ()
    """Guesses of what follows: the last of `token_ids`, which are in no text yet. The work then has one sample, and a
    row of logits for its last own token and for each guess: row i is drawn from as if the i guesses before it had been
    drawn, or those that it goes on from."""
    parents: tuple[int, ...] = ()
    """Says of guesses that branch which one each goes on from: an earlier one, by its number among them, or -1, the
    last own token. Siblings differ. Empty: each goes on from the one before it."""
    propose: int = 0  # tokens that the engine's own proposer, if it has one, is to guess behind those that it gives
    state: bytes = b""  # fp32 `[hidden]`, the hidden state of the token before `start`, if another worker has told it
    tells_state: bool = False  # whether that of its last token is to be told


class BlockMove(Struct, frozen=True, array_like=True):
    """Moves one block of one KV group, in all its layers: within the pool, out to the host tier, or back in."""

    kind: Literal["copy", "out", "in"]
    group: int  # index of the KV group
    source: int  # a block of the pool; for "in" a slot of the host tier
    target: int  # a block of the pool; for "out" a slot of the host tier


class StepPlan(Struct, frozen=True, array_like=True):
    """Describes one step: a chunk of a prompt and a decode step are the same thing with other lengths."""

    step: int
    works: list[Work]


class GrammarRefusal(Struct, frozen=True, array_like=True):
    """Says why a work's constraints do not let it go on, and whose fault that is."""

    why: str
    ours: bool = False  # this worker could not tell what is allowed; another may


class Proposal(Struct, frozen=True, array_like=True):
    """Holds guesses of what follows a sequence's tokens, and what they rest on."""

    tokens: list[int]
    evidence: int = 0  # tokens that speak for the first guess; 0: nothing is said of it
    parents: tuple[int, ...] = ()  # as in `Work.parents`

    def first(self, count: int) -> "Proposal":
        """Returns the first `count` of them: a guess stands behind the one that it goes on from."""
        if count >= len(self.tokens):
            return self
        return Proposal(self.tokens[:count], self.evidence, self.parents[:count])


NO_PROPOSAL = Proposal([])


class StepResult(Struct, frozen=True, array_like=True):
    """Answers a plan."""

    step: int
    tokens: list[list[int]]
    """Holds of each work, in order, the tokens that it sampled: one for each sample, in their order. One with a single
    sample may have more: what was drawn as it was guessed and what was drawn behind that, and those that have to follow
    by its grammar."""
    failed: list[int] = []  # indices of works whose logits were not finite
    none_left: list[int] = []  # indices of works of which every token is forbidden
    refused: dict[int, GrammarRefusal] = {}  # by index of a work that its grammar does not let go on
    scores: dict[int, list[Scores]] = {}  # by index of a work that wants them, of its draws: one for each sample
    prompt_scores: dict[int, Scores] = {}  # by index of a work that wants them, of the tokens behind each of its own
    accepted: dict[int, list[int]] = {}
    """By index of a work with draft tokens: the indices of those that were accepted, each the parent of the next."""
    proposed: dict[int, Proposal] = {}  # by index of a work, draft tokens behind its tokens; see `Work.propose`
    states: dict[int, bytes] = {}  # by index of a work that tells it, the hidden state of its last token, fp32
    proposing: float = 0.0  # s that the engine's proposer took
