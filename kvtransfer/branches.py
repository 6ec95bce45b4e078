"""Which branches a Commit may have. Both sides check with this: the sender its own worker, the receiver the sender."""

from collections.abc import Sequence

from core.messages import Branch


def branches_fit(samples: Sequence[int], branches: Sequence[Branch]) -> bool:
    """At least one branch, each of another one of the Open's `samples`, each with at least one token."""
    named = [branch.sample for branch in branches]
    return (
        bool(named)
        and len(set(named)) == len(named)
        and set(named) <= set(samples)
        and all(branch.emitted for branch in branches)
    )
