"""What Redis shows of the system: workers, requests in progress, requests that ended, samples of load. No request text.

Records are JSON, so that an operator can read them with any Redis client.
"""

from typing import Literal

from msgspec import Struct, structs

Role = Literal["prefill", "decode"]
Outcome = Literal["finished", "failed", "cancelled"]
State = Literal["queued", "prefill", "decode"]


class Load(Struct, frozen=True):
    """How busy a worker is: sequences, blocks, and totals since its start."""

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

    def with_counts(self, waiting: int, handoffs: int, handoff_bytes: int) -> "Load":
        """The same with what only the role knows."""
        return structs.replace(self, waiting=waiting, handoffs=handoffs, handoff_bytes=handoff_bytes)


class WorkerRecord(Struct, frozen=True):
    """One life of a worker, renewed by its heartbeat."""

    epoch: str
    role: Role
    address: str  # of the control link
    handoff_address: str  # where a decode worker takes handoffs; empty for a prefill worker
    model: str
    fingerprint: str
    block_tokens: int
    max_model_len: int
    device: str
    dtype: str
    started_at: float
    draining: bool = False
    load: Load = Load()


class RequestRecord(Struct, frozen=True):
    """A request in progress: the least advanced of its samples, and the tokens of all."""

    request: str
    state: State
    since: float
    prompt_tokens: int
    output_tokens: int
    prefill_worker: str
    decode_worker: str


class GatewayRecord(Struct, frozen=True):
    """One life of a gateway, with its requests in progress."""

    epoch: str
    url: str
    model: str
    started_at: float
    slo_ttft_ms: float
    slo_tpot_ms: float
    requests: list[RequestRecord] = []


class FinishedRecord(Struct, frozen=True):
    """A request that ended, with all its samples. Milliseconds, bytes and tokens; `ended_at` in Redis server time.

    TTFT and TPOT are those of the sample that was worst in each, so that a request is good exactly if all of its
    samples are; tokens are those of all of them, the prompt counted once.
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
    good: bool
    samples: int = 1


class StatsSample(Struct, frozen=True):
    """A worker's load at one moment."""

    at: float
    epoch: str
    role: Role
    load: Load
