"""Records in Redis: workers, gateways, requests in progress and ended, load samples. They contain no request text.

Records are JSON, so that an operator can read them with any Redis client.
"""

from typing import Literal

from msgspec import Struct

from contracts.adapters import HeldAdapter
from contracts.kinds import Codec, Quantization, Transport
from contracts.pooling import Pooling
from contracts.slo import NO_OBJECTIVE, Objective
from infra.redis.worker_load import WorkerLoad
from pricing.roofline.device_use import DeviceFigures
from pricing.routes.links import HostLocation
from pricing.scaling.standing import Standing

HEARTBEAT_S = 1.0
"""Between two renewals of a record."""
Role = Literal["prefill", "decode"]
Outcome = Literal["finished", "failed", "cancelled", "refused"]
Judgement = Literal["good", "late", "failed", "cancelled", "refused"]
"""What a request counts as once it has ended: a finished request is good if it met its objective, else late."""
State = Literal["queued", "prefill", "decode"]


class KVLink(Struct, frozen=True):
    """Transport of KV between a worker and a worker of the other role."""

    peer: str  # epoch of the other worker
    transport: Transport
    sealed: bool
    codec: Codec
    bytes_per_second: float = 0.0  # while something was to be sent; 0: not measured


class UnreachedPeer(Struct, frozen=True):
    """An unreachable worker of the other role."""

    peer: str  # epoch
    address: str  # handoff or payload endpoint


class Memory(Struct, frozen=True):
    """A worker's memory in bytes and tokens, that of all its ranks together, and its measured rates."""

    weights_bytes: int = 0
    kv_pool_bytes: int = 0  # includes the null block
    host_tier_bytes: int = 0
    token_bytes: int = 0  # bytes of KV for each token
    tokens: int = 0  # capacity of the pool
    sequences: int = 0  # of max_model_len tokens, in the pool
    prompt_tokens_per_second: float = 0.0
    host_bytes_per_second: float = 0.0  # between the pool and the host tier


class WorkerRecord(Struct, frozen=True):
    """One life of a worker, renewed by its heartbeat."""

    epoch: str
    role: Role
    address: str  # endpoint of its control socket
    handoff_address: str  # endpoint where a decode worker takes handoffs; empty for a prefill worker
    model: str
    fingerprint: str  # `KVSpec.fingerprint`: equal if blocks can be copied
    content: str  # `KVSpec.content`: equal if blocks can be converted
    block_tokens: int
    max_model_len: int
    device: str
    dtype: str
    started_at: float
    draining: bool = False
    load: WorkerLoad = WorkerLoad()
    memory: Memory = Memory()
    figures: DeviceFigures = DeviceFigures()
    quantization: Quantization = "none"  # as asked for, else the kind of most of the checkpoint's weights
    kv_dtype: str = ""  # number format; quantized KV passes only between workers of equal formats
    links: list[KVLink] = []  # links over which KV can pass now, or has passed
    unreached: tuple[UnreachedPeer, ...] = ()
    place: HostLocation = HostLocation()
    adapters: tuple[HeldAdapter, ...] = ()
    service: str = ""  # its name among the services of its launcher, such as decode-0; empty: it has no launcher
    restarts: int = 0  # earlier lives that its launcher has restarted
    adapter_list: int = 0  # number of the adapter list (`infra/redis/adapter_list.py`) that it has applied
    ranks: int = 1  # processes that divide the model, on GPUs each with its own
    pooling: Pooling | None = None  # of a model that gives vectors or scores; None: it answers chats


class RequestRecord(Struct, frozen=True):
    """A request in progress: the state of its least advanced sample, and the tokens of all samples."""

    request: str
    state: State
    since: float
    prompt_tokens: int
    output_tokens: int
    prefill_worker: str
    decode_worker: str
    ahead: int = 0  # jobs of its gateway before its own on its worker's stream


class GatewayRecord(Struct, frozen=True):
    """One life of a gateway, with its requests in progress."""

    epoch: str
    url: str
    model: str
    started_at: float
    objective: Objective = NO_OBJECTIVE  # for requests without an objective of their own
    requests: list[RequestRecord] = []
    adapters: list[str] = []  # digests used by requests in progress
    group: str = ""  # name of the gateways that share its port, if any
    in_progress: int = 0  # answers in progress
    waiting: int = 0  # requests queued at its gate
    figures: str = ""  # metrics in Prometheus' text format
    standing: Standing = Standing()  # the load of the workers and the demand, as this gateway sees them
    refused: dict[str, int] = {}  # requests answered with 429 or 503, by error code
    judged: dict[Judgement, int] = {}  # requests that ended since its start
    unloaded: str = ""  # stage of a model that was idle: `unloaded` or `loading again`; empty: it is loaded


class AttemptRecord(Struct, frozen=True):
    """An attempt of an ended request; times in ms since the request was received."""

    number: int
    samples: int  # samples of its job
    begun_ms: float
    ended_ms: float
    prefill_worker: str
    decode_worker: str
    end: str  # reason of its end, a stable word or clause


MAX_RECORDED_ATTEMPTS = 16  # of one request, the last of them


class FinishedRecord(Struct, frozen=True):
    """A request that ended, with times in ms; `ended_at` is Redis server time.

    A request is refused if it was answered with 429 or 503 before its first token. `reason` is the error's code if it
    was refused or failed. TTFT and TPOT are the worst of its samples, so a request is good exactly if all of its
    samples are. Tokens are summed over all samples, with the prompt counted once.
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
    attempts: int  # jobs: the first for all samples, and one for each retried sample
    good: bool  # finished, and met its objective
    samples: int = 1
    grant_ms: float = 0.0  # time until the decode worker granted blocks
    send_ms: float = 0.0  # time in which KV was ready to leave or under way, as far as either worker knows
    exposed_ms: float = 0.0  # handoff time after the prompt was computed; see `messages.gateway.Stages`
    transport: Transport | Literal[""] = ""  # empty: no KV was moved
    sealed: bool = False
    codec: Codec = "none"
    objective: Objective = NO_OBJECTIVE  # objective that `good` refers to: the request's, its key's, or the gateway's
    tenant: str = ""  # owner of its API key; empty: the gateway has no keys
    tries: tuple[AttemptRecord, ...] = ()  # the last `MAX_RECORDED_ATTEMPTS` attempts, in the order of their beginning

    def judged(self) -> Judgement:
        if self.outcome == "finished":
            return "good" if self.good else "late"
        return self.outcome


class RunMark(Struct, frozen=True):
    """The beginning or the end of a load that a load generator measures."""

    run: str  # the same at the beginning and at the end
    name: str
    at: float  # server time, s
    ended: bool


INTERVAL_S = 30.0
"""Length of the intervals that gateways sum up for the history, in s of server time."""
LATENCY_STEPS = 20
"""Buckets of the interval's latencies for each factor of ten: a bucket's bound is 12% above the one before."""


class RoleUse(Struct, frozen=True):
    """Use of the workers of a role, as means over an interval, summed over workers; KV as a share."""

    running: float
    waiting: float
    kv_used: float  # of blocks, 0 to 1


class TenantUse(Struct, frozen=True):
    """Requests and tokens of a tenant that ended in an interval."""

    requests: int = 0
    good: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0


class IntervalRecord(Struct, frozen=True):
    """The requests of one gateway in one interval: the history, after the records of single requests have gone.

    Latencies are counts by bucket; bucket b holds times up to 10^(b / LATENCY_STEPS) ms.
    """

    gateway: str  # epoch
    ended_at: float  # server time, s
    outcomes: dict[Judgement, int] = {}
    missed: dict[str, int] = {}  # late requests, by missed limit
    failed: dict[str, int] = {}  # by error code
    refused: dict[str, int] = {}  # by error code
    ttft: dict[int, int] = {}
    tpot: dict[int, int] = {}
    prompt_tokens: int = 0  # of requests with an output token
    cached_tokens: int = 0
    output_tokens: int = 0
    waiting: float = 0.0  # requests at the gate, mean
    roles: dict[str, RoleUse] = {}
    tenants: dict[str, TenantUse] = {}


class StatsSample(Struct, frozen=True):
    """A worker's load at one moment."""

    at: float
    epoch: str
    role: Role
    load: WorkerLoad
