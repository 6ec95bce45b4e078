"""A worker's load as its record tells it: sequences and blocks now, and totals since its start."""

from msgspec import Struct, structs

from pricing.roofline.device_use import StepTotals
from pricing.routes.backlog import Backlog
from pricing.step_costs.steps import StepCosts


class KVCounts(Struct, frozen=True):
    """Use of KV memory: totals since the start, and two gauges of slots (a slot holds one token's KV)."""

    queried_tokens: int = 0  # tokens of sequences that were given blocks
    found_tokens: int = 0  # of these, tokens whose KV was cached
    partial_hits: int = 0  # hits that ended inside a block, which was copied
    copied_blocks: int = 0  # copy-on-write
    forks: int = 0  # branches that began with another sequence's blocks
    evicted_blocks: int = 0  # idle blocks that were reused
    spilled_blocks: int = 0  # evicted blocks that were kept in the host tier
    returned_blocks: int = 0  # blocks restored from the host tier
    preempted_swapped: int = 0  # preempted sequences that resumed with blocks from the host tier
    preempted_recomputed: int = 0  # preempted sequences that recomputed at least one block
    used_slots: int = 0  # gauge: slots in blocks that sequences hold
    wasted_slots: int = 0  # gauge: of these, slots that no running sequence will fill yet


class HandoffCounts(Struct, frozen=True):
    """A worker's handoffs since its start, except for the number of successful handoffs (see `WorkerLoad`).

    Seconds are sums over successful handoffs. A prefill worker measures the first three, a decode worker the last.
    Reasons are a fixed set of words (`kvtransfer/protocol/outcomes.py`).
    """

    grant_seconds: float = 0.0  # from Open to Grant
    send_seconds: float = 0.0  # while payloads were ready to leave, or under way
    exposed_seconds: float = 0.0  # from the end of the prompt's computation to Accepted
    land_seconds: float = 0.0  # from Commit's arrival until all KV had landed
    given_up: dict[str, int] = {}  # unsuccessful handoffs (refused, aborted, not needed), by reason
    dropped: dict[str, int] = {}  # messages and payloads, by reason


class HeldBlocks(Struct, frozen=True):
    """KV blocks that handoffs hold, by state; each block is in one state at most."""

    pinned: int = 0  # on a prefill worker: may still be read, and held by a sequence
    reserved: int = 0  # on a decode worker: KV is on its way
    quarantined: int = 0  # may still be read or written, but no sequence holds them


STEP_SIZES = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Upper bounds of the step size histogram, in tokens, as in vLLM's `vllm:iteration_tokens_total`."""


class StepTokens(Struct, frozen=True):
    """Histogram of steps by their tokens, of prompts and outputs together, since the start."""

    steps: tuple[int, ...] = ()  # steps of each bucket of `STEP_SIZES`; the last: larger steps
    tokens: int = 0  # of all steps


class SpeculationCounts(Struct, frozen=True):
    """Speculative decoding since the start."""

    works: int = 0  # decoded sequences summed over steps
    guessed: int = 0  # of these, sequences with draft tokens
    proposed: int = 0  # draft tokens
    accepted: tuple[int, ...] = ()  # accepted draft tokens, by position
    saved_seconds: float = 0.0  # estimated time of the saved steps, less the time of verifying

    @property
    def accepted_tokens(self) -> int:
        return sum(self.accepted)

    def since(self, earlier: "SpeculationCounts") -> "SpeculationCounts":
        """Returns the counts since an earlier record of the same worker."""
        older = (*earlier.accepted, *[0] * len(self.accepted))
        return SpeculationCounts(
            self.works - earlier.works,
            self.guessed - earlier.guessed,
            self.proposed - earlier.proposed,
            tuple([now - before for now, before in zip(self.accepted, older, strict=False)]),
            self.saved_seconds - earlier.saved_seconds,
        )

    @property
    def step_tokens(self) -> float:
        return 1 + self.accepted_tokens / self.works if self.works else 1.0


class WorkerLoad(Struct, frozen=True):
    """A worker's sequences and blocks now, and totals since its start."""

    running: int = 0
    waiting: int = 0
    blocks_total: int = 0
    blocks_used: int = 0
    blocks_cached: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    handoffs: int = 0
    handoff_bytes: int = 0
    dropped: int = 0
    preemptions: int = 0
    kv: KVCounts = KVCounts()
    handoff: HandoffCounts = HandoffCounts()
    held: HeldBlocks = HeldBlocks()
    step_tokens: StepTokens = StepTokens()
    backlog: Backlog = Backlog()
    costs: StepCosts = StepCosts()
    speculation: SpeculationCounts = SpeculationCounts()
    step_totals: StepTotals = StepTotals()

    def with_counts(self, waiting: int, handoffs: int, handoff_bytes: int, held: HeldBlocks) -> "WorkerLoad":
        """Returns a copy with the counts of the worker's role."""
        return structs.replace(
            self,
            waiting=waiting,
            handoffs=handoffs,
            handoff_bytes=handoff_bytes,
            held=held,
        )
