"""Rules that both ends of a handoff must share."""

from collections.abc import Sequence
from typing import NamedTuple

from contracts.kv.spec import KVSpec
from contracts.messages.handoff import Branch


class HandoffKey(NamedTuple):
    """A handoff's name on the decode side."""

    sender: str  # epoch of the prefill worker
    handoff: int  # the prefill worker's number


def handoff_blocks(spec: KVSpec, tokens: int) -> tuple[range, ...]:
    """Returns the blocks of each KV group that a handoff moves: seen by the query after `tokens` tokens."""
    return tuple(group.needed_blocks(tokens) for group in spec.groups)


def branches_fit(samples: Sequence[int], branches: Sequence[Branch]) -> bool:
    """Whether a Commit may have these branches.

    There must be at least one, each of a different sample of the Open, with tokens. The sender checks its own worker
    with this, the receiver checks the sender.
    """
    named = [branch.sample for branch in branches]
    return (
        bool(named)
        and len(set(named)) == len(named)
        and set(named) <= set(samples)
        and all(branch.emitted for branch in branches)
    )
