"""What both ends of a handoff have to agree on."""

from collections.abc import Sequence
from typing import NamedTuple

from contracts.kv.spec import KVSpec
from contracts.messages.handoff import Branch


class HandoffKey(NamedTuple):
    """A handoff's name on the decode side."""

    sender: str  # epoch of the prefill worker
    handoff: int  # the prefill worker's number


def handoff_blocks(spec: KVSpec, tokens: int) -> tuple[range, ...]:
    """Returns the blocks of each KV group that the query behind `tokens` tokens sees: those that a handoff moves."""
    return tuple(group.needed_blocks(tokens) for group in spec.groups)


def branches_fit(samples: Sequence[int], branches: Sequence[Branch]) -> bool:
    """Tells whether a Commit may have these branches.

    There must be at least one, each of another of the Open's `samples`, with tokens. The sender checks its own worker
    with this, the receiver checks the sender.
    """
    named = [branch.sample for branch in branches]
    return (
        bool(named)
        and len(set(named)) == len(named)
        and set(named) <= set(samples)
        and all(branch.emitted for branch in branches)
    )
