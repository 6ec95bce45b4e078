"""Snapshot of one worker, as far as it matters to the price of one prompt."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from msgspec import Struct

from pricing.routes.backlog import Backlog
from pricing.routes.links import HostLocation
from pricing.step_costs.steps import DecodeYield, StepCosts


class WorkerKind(NamedTuple):
    """Workers whose steps should take equally long."""

    role: str
    content: str  # `KVSpec.content`: KV passes only between workers where it is equal
    device: str


class Candidate(Struct, frozen=True, gc=False):
    """Worker that may compute or decode a prompt, with the gateway's present knowledge of the worker.

    Each request has a dozen: a struct is made in a quarter of a named tuple's time.
    """

    epoch: str
    kind: WorkerKind
    costs: StepCosts  # as the worker has last reported
    learned_at: float  # local time, s, when the number of steps behind `costs` last grew
    backlog: Backlog  # with what this gateway has sent since the worker's report
    report_age: float  # s since the report
    awaited: int  # tokens of `backlog` that are surely not computed before the running step
    decode_yield: DecodeYield  # of its decode steps lately
    cached: int  # leading tokens of the prompt whose KV it has, in whole blocks
    last_resort: tuple[bool, bool, bool]  # late, to be avoided, full: chosen only if every other worker is worse
    load: int  # sequences there
    kv_use: float  # share of its KV blocks in use, 0 to 1
    idle: bool  # nothing to do, and nothing on its way there
    location: HostLocation
    token_bytes: int  # bytes of KV per token
    links: Mapping[str, float]  # measured bytes per second to other workers, by epoch; 0: not measured
    unreachable: Collection[str]  # epochs of workers that it cannot connect to

    def reaches(self, other: "Candidate") -> bool:
        return self.kind.content == other.kind.content and other.epoch not in self.unreachable
