"""Records what Redis shows of the system: workers, requests in progress and ended, samples of load. No request text.

Records are JSON, so that an operator can read them with any Redis client.
"""

from typing import Literal

from msgspec import Struct, structs

from contracts.adapters import HeldAdapter
from contracts.kinds import Codec, Quantization, Transport
from contracts.slo import NO_OBJECTIVE, Objective
from pricing.backlog import Backlog
from pricing.places import Place
from pricing.standing import Standing
from pricing.steps import StepCosts

Role = Literal["prefill", "decode"]
Outcome = Literal["finished", "failed", "cancelled", "refused"]
State = Literal["queued", "prefill", "decode"]


class KVCounts(Struct, frozen=True):
    """Counts how well KV memory is used: totals since the start, and two gauges of slots (room for one token's KV)."""

    queried_tokens: int = 0  # tokens of sequences that were given blocks
    found_tokens: int = 0  # those of them whose KV was here
    partial_hits: int = 0  # hits that ended inside a block, which was copied
    copied_blocks: int = 0  # copy-on-write
    forks: int = 0  # branches that began with another sequence's blocks
    evicted_blocks: int = 0  # idle blocks that gave way to others
    spilled_blocks: int = 0  # evicted blocks that were kept in the host tier
    returned_blocks: int = 0  # blocks that came back from the host tier
    preempted_swapped: int = 0  # preempted sequences that went on with blocks from the host tier
    preempted_recomputed: int = 0  # preempted sequences that had to compute a block's tokens again
    used_slots: int = 0  # gauge: slots in blocks that somebody holds
    wasted_slots: int = 0  # gauge: of those, the ones that no token of a running sequence will fill yet


class HandoffCounts(Struct, frozen=True):
    """Counts a worker's handoffs since its start. Successful handoffs are counted in `WorkerLoad`.

    Seconds are sums over the handoffs that passed. A prefill worker knows the first three, exactly; a decode worker the
    last. Reasons are a fixed set of words (`kvtransfer/protocol/outcomes.py`).
    """

    grant_seconds: float = 0.0  # from Open to Grant
    send_seconds: float = 0.0  # while payloads were ready to leave, or under way
    exposed_seconds: float = 0.0  # from the end of the prompt's computation to Accepted
    land_seconds: float = 0.0  # from Commit's arrival until all KV had landed
    given_up: dict[str, int] = {}  # handoffs that did not pass: refused, aborted, or not needed; by reason
    dropped: dict[str, int] = {}  # messages and payloads, by reason


class HeldBlocks(Struct, frozen=True):
    """Counts the KV blocks that handoffs hold, by state; none is in two."""

    pinned: int = 0  # blocks on a prefill worker that may still be read, and that a sequence has too
    reserved: int = 0  # blocks on a decode worker whose KV is on its way
    quarantined: int = 0  # no sequence wants them any more, but they may still be read, or written to


STEP_SIZES = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Tokens of a step, by which steps are counted: vLLM's bounds of `vllm:iteration_tokens_total`."""


class StepTokens(Struct, frozen=True):
    """Counts steps by their tokens, of prompts and of output together: totals since the start."""

    steps: tuple[int, ...] = ()  # for each of `STEP_SIZES`, and for more, those above the one before and up to it
    tokens: int = 0  # of all steps


class SpeculationCounts(Struct, frozen=True):
    """Counts guesses of tokens that decode steps have verified: totals since the start."""

    works: int = 0  # sequences' shares of steps in which a token was drawn: of each at least one
    guessed: int = 0  # those of them that had guesses
    proposed: int = 0  # guesses
    accepted: tuple[int, ...] = ()  # guesses that came true, by their place among those of a work
    saved_seconds: float = 0.0  # time that steps would have taken for these, less what the guesses' rows took

    @property
    def accepted_tokens(self) -> int:
        """Counts the guesses that came true."""
        return sum(self.accepted)

    def since(self, earlier: "SpeculationCounts") -> "SpeculationCounts":
        """Returns what was counted since an earlier look at the same worker."""
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
        """Returns the tokens that a sequence had of a step, on average: 1 without guesses."""
        return 1 + self.accepted_tokens / self.works if self.works else 1.0


class WorkerLoad(Struct, frozen=True):
    """Tells how busy a worker is: sequences and blocks now, and totals since its start."""

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

    def with_counts(self, waiting: int, handoffs: int, handoff_bytes: int, held: HeldBlocks) -> "WorkerLoad":
        """Returns the same with what only the worker's role knows."""
        return structs.replace(
            self,
            waiting=waiting,
            handoffs=handoffs,
            handoff_bytes=handoff_bytes,
            held=held,
            backlog=structs.replace(self.backlog, reserved_blocks=held.reserved),
        )


class KVLink(Struct, frozen=True):
    """Tells how KV passes between a worker and one of the other role."""

    peer: str  # epoch of the other worker
    transport: Transport
    sealed: bool
    codec: Codec
    bytes_per_second: float = 0.0  # that went through, while something was to be sent; 0: not measured


class UnreachedPeer(Struct, frozen=True):
    """Names a worker of the other role that cannot be connected to, and where."""

    peer: str  # its epoch
    address: str  # endpoint of its handoffs, or of its payloads


class Memory(Struct, frozen=True):
    """Tells what a worker's memory is for, how much fits in, in bytes and tokens, and which rates it measured."""

    weights_bytes: int = 0
    kv_pool_bytes: int = 0  # the null block included
    host_tier_bytes: int = 0
    token_bytes: int = 0  # bytes of KV for each token
    tokens: int = 0  # tokens that the pool holds
    sequences: int = 0  # sequences of max_model_len tokens that the pool holds
    prompt_tokens_per_second: float = 0.0
    host_bytes_per_second: float = 0.0  # between the pool and the host tier


class WorkerRecord(Struct, frozen=True):
    """Describes one life of a worker; its heartbeat renews it."""

    epoch: str
    role: Role
    address: str  # endpoint of its control socket
    handoff_address: str  # endpoint where a decode worker takes handoffs; empty for a prefill worker
    model: str
    fingerprint: str  # `KVSpec.fingerprint`: equal if blocks pass as they are
    content: str  # `KVSpec.content`: equal if blocks can be converted
    block_tokens: int
    max_model_len: int
    device: str
    dtype: str
    started_at: float
    draining: bool = False
    load: WorkerLoad = WorkerLoad()
    memory: Memory = Memory()
    quantization: Quantization = "none"  # what was asked for, else the form of most of the checkpoint's weights
    kv_dtype: str = ""  # number format of its KV; what is quantized passes only between workers whose formats are equal
    links: list[KVLink] = []  # links over which KV can pass now, or has passed
    unreached: tuple[UnreachedPeer, ...] = ()
    place: Place = Place()
    adapters: tuple[HeldAdapter, ...] = ()
    adapter_list: int = 0  # number of the list (`infra/redis/adapter_list.py`) that it has followed


class RequestRecord(Struct, frozen=True):
    """Describes a request in progress: the state of its least advanced sample, and the tokens of all."""

    request: str
    state: State
    since: float
    prompt_tokens: int
    output_tokens: int
    prefill_worker: str
    decode_worker: str
    ahead: int = 0  # jobs of its gateway that stand before its own in line on its worker's stream


class GatewayRecord(Struct, frozen=True):
    """Describes one life of a gateway, with its requests in progress."""

    epoch: str
    url: str
    model: str
    started_at: float
    objective: Objective = NO_OBJECTIVE  # limits of requests that bring none of their own
    requests: list[RequestRecord] = []
    adapters: list[str] = []  # digests of those that requests in progress use
    group: str = ""  # name of the gateways that share its port, if it has siblings
    in_progress: int = 0  # answers
    waiting: int = 0  # requests in line at its gate
    figures: str = ""  # … and what it has counted, in Prometheus' text format
    standing: Standing = Standing()  # of the workers, as it sees them, and what comes to it
    refused: dict[str, int] = {}  # requests answered with 429 or 503 since its start, by the error's code


class FinishedRecord(Struct, frozen=True):
    """Describes a request that ended, in milliseconds, bytes and tokens; `ended_at` is Redis server time.

    A request was refused if it was answered with 429 or 503 before its first token; then, or if it failed, `reason` is
    the code of the error. TTFT and TPOT are those of the sample that was worst in each, so that a request is good
    exactly if all of its samples are; tokens are those of all samples, the prompt counted once.
    """

    request: str
    outcome: Outcome
    reason: str
    ended_at: float
    model: str
    prompt_tokens: int
    output_tokens: int
    ttft_ms: float
    tpot_ms: float
    e2e_ms: float
    queue_ms: float
    prefill_ms: float
    handoff_ms: float
    handoff_bytes: int
    cached_tokens: int
    prefill_worker: str
    decode_worker: str
    attempts: int  # jobs: the first for all samples, and one for each that was tried again
    good: bool  # it finished, and met its objective
    samples: int = 1
    grant_ms: float = 0.0  # time that it waited for room on the decode worker
    send_ms: float = 0.0  # time in which KV was ready to leave, or on its way, as far as either worker knows
    exposed_ms: float = 0.0  # time of the handoff after the prompt was computed; see `messages.gateway.Stages`
    transport: Transport | Literal[""] = ""  # empty: no KV was moved
    sealed: bool = False
    codec: Codec = "none"
    objective: Objective = NO_OBJECTIVE  # the limits that it was judged by: its own, its key's, or the gateway's


class StatsSample(Struct, frozen=True):
    """Holds a worker's load at one moment."""

    at: float
    epoch: str
    role: Role
    load: WorkerLoad
