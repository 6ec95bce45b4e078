"""Counts and checks what both ends of a handoff have to agree on."""

from collections.abc import Sequence
from typing import NamedTuple

from contracts.kv.spec import KVSpec
from contracts.messages.handoff import Branch


class HandoffKey(NamedTuple):
    """Names a handoff, as the decode side knows it."""

    sender: str  # epoch of the prefill worker
    handoff: int  # the prefill worker's number for it


def handoff_blocks(spec: KVSpec, tokens: int) -> tuple[range, ...]:
    """Returns which blocks of each KV group a handoff of `tokens` tokens is about: what the query behind them sees."""
    return tuple(group.needed_blocks(tokens) for group in spec.groups)


def branches_fit(samples: Sequence[int], branches: Sequence[Branch]) -> bool:
    """Tells whether a Commit may have these branches.

    There has to be one at least, each of another of the Open's `samples`, and with tokens. The sender checks its own
    worker with this, the receiver the sender.
    """
    named = [branch.sample for branch in branches]
    return (
        bool(named)
        and len(set(named)) == len(named)
        and set(named) <= set(samples)
        and all(branch.emitted for branch in branches)
    )
