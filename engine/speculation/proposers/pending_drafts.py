"""Draft tokens that the host plans with before it knows them.

The device drafts while the host plans and prepares the next step. That step takes its draft tokens on the device; the
host reads them when it collects the step, to see which of them were right.
"""

import time
from collections.abc import Mapping, Sequence
from typing import overload

import torch
from msgspec import structs
from torch import Tensor

from engine.backends.adjuster import is_adjusted
from engine.backends.adjusting.recent import Recent
from engine.device import event_on, to_host
from engine.model.batch import Sampled
from engine.plan import PENDING_DRAFT, PENDING_TOKEN, Proposal, StepPlan, Work


class DeviceDrafts:
    """The draft tokens of one call of a proposer, on the device and on their way to the host."""

    def __init__(self, tokens: Tensor) -> None:
        self.tokens = tokens  # int64 [draft tokens]
        self._host = to_host(tokens)
        self._done = event_on(tokens.device)
        self._launched = time.perf_counter()
        self._known: list[int] | None = None

    def known(self) -> list[int]:
        """Waits for the tokens, once."""
        self.wait()
        if self._known is None:
            self._known = self._host.tolist()
        return self._known

    def wait(self) -> float:
        """Waits for the device, once. Returns the seconds since the launch; 0 where it has waited before."""
        if self._done is None:
            return 0.0
        self._done.synchronize()
        self._done = None
        return time.perf_counter() - self._launched


class DraftedTokens(Sequence[int]):
    """The draft tokens of one sequence. Reading them waits for the device; their number is known."""

    def __init__(self, drafts: DeviceDrafts, indices: Sequence[int]) -> None:
        """`indices`: the positions in `drafts` that hold the sequence's draft tokens."""
        self.drafts = drafts
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> list[int]: ...

    def __getitem__(self, index: int | slice) -> int | list[int]:
        known = self.drafts.known()
        return [known[draft] for draft in self.indices][index]

    def first(self, count: int) -> "DraftedTokens":
        return DraftedTokens(self.drafts, self.indices[: max(0, count)])


class PendingDrafts:
    """The newest draft tokens of each sequence that a plan names by `PENDING_DRAFT`."""

    def __init__(self) -> None:
        self._by_sequence: Recent[DraftedTokens] = Recent()

    def proposal(self, work: Work, drafted: DraftedTokens) -> Proposal:
        """Returns draft tokens behind `work` as a proposal: pending, unless the next step's host work reads them."""
        if is_adjusted(work):  # its draws look at the draft tokens before them
            return Proposal(list(drafted))
        self._by_sequence.keep(work.sequence, drafted)
        return Proposal([PENDING_DRAFT] * len(drafted))

    def of(self, plan: StepPlan) -> tuple[StepPlan, Mapping[int, DraftedTokens]]:
        """Returns a plan to launch and its pending draft tokens by sequence; 0 replaces forgotten draft tokens."""
        found: dict[int, DraftedTokens] = {}
        forgotten = False
        for work in plan.works:
            if is_pending(work):
                drafted = self._by_sequence.use(work.sequence)
                if drafted is not None and len(drafted) >= len(work.proposed):
                    found[work.sequence] = drafted
                else:
                    forgotten = True
        self._by_sequence.forget(len(plan.works))
        if forgotten:
            works = [
                with_drafts(work, [0] * len(work.proposed)) if work.sequence not in found else work
                for work in plan.works
            ]
            plan = structs.replace(plan, works=works)
        return plan, found


def is_pending(work: Work) -> bool:
    return bool(work.proposed) and work.proposed[0] == PENDING_DRAFT


def with_drafts(work: Work, drafted: Sequence[int]) -> Work:
    """Returns a work whose pending draft tokens, if it has any, are the first of `drafted`."""
    if not is_pending(work):
        return work
    known = tuple(drafted[: len(work.proposed)])
    own = work.token_ids[: len(work.token_ids) - len(known)]
    return structs.replace(work, token_ids=[*own, *known], proposed=known)


def before_drafts(
    before: Sampled | None, works: Sequence[Work], drafted: Mapping[int, DraftedTokens]
) -> Sampled | None:
    """Returns the tokens on the device that pending tokens of `works` stand for, draft tokens included."""
    if not drafted:
        return before
    waits = any(PENDING_TOKEN in work.token_ids for work in works)
    parts = [before.tokens] if before is not None and waits else []
    begins: dict[int, int] = {}  # by proposal, the place of its first draft token
    length = sum(map(len, parts))
    for each in drafted.values():
        if id(each.drafts) not in begins:
            begins[id(each.drafts)] = length
            parts.append(each.drafts.tokens)
            length += len(each.drafts.tokens)
    indices = {
        sequence: [begins[id(each.drafts)] + draft for draft in each.indices] for sequence, each in drafted.items()
    }
    tokens = parts[0] if len(parts) == 1 else torch.cat(parts)
    return Sampled(tokens, before.works if before is not None and waits else (), indices)
