"""What a step is asked to do and what it answers: data without tensors, so that the ranks of one model can share it."""

from typing import Literal

from msgspec import Struct

from core.messages import Sampling

PENDING = -1
"""A token id that stands for "the token sampled by the step before", which the host has not seen yet."""


class Work(Struct, frozen=True, array_like=True):
    """One sequence's share of a step: compute `token_ids` at positions `start`, `start` + 1, …

    `blocks` is the block table of each KV group, long enough for the last position. `sampling` is None unless the last
    row is to be sampled, as output index `output_index` of the sequence (the randomness is keyed by it): once for each
    of `samples`, from the same logits. Who has several samples gets no PENDING token before they were collected.
    """

    sequence: int
    start: int
    token_ids: list[int]
    blocks: tuple[list[int], ...]
    sampling: Sampling | None = None
    samples: tuple[int, ...] = (0,)
    output_index: int = 0


class BlockMove(Struct, frozen=True, array_like=True):
    """One block of one KV group, in all its layers: within the device's pool, out to the host tier, or back in."""

    kind: Literal["copy", "out", "in"]
    group: int
    source: int  # a block of the pool; for "in" a slot of the host tier
    target: int  # a block of the pool; for "out" a slot of the host tier


class Plan(Struct, frozen=True, array_like=True):
    """One step: a chunk of a prompt and a decode step are the same thing with other lengths."""

    step: int
    works: list[Work]


class StepResult(Struct, frozen=True, array_like=True):
    """For each work of the plan, in order, the tokens that it sampled: one for each of its samples, in their order."""

    step: int
    tokens: list[list[int]]
    failed: list[int] = []  # indices of works whose logits were not finite
