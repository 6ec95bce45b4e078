"""Sums up what a gateway sees in intervals of server time, for the history of a day. Pure."""

from collections import Counter
from collections.abc import Iterable
from math import ceil, log10

from gateway.workers.worker import Worker
from infra.redis.records import (
    INTERVAL_S,
    LATENCY_STEPS,
    FinishedRecord,
    IntervalRecord,
    Judgement,
    RoleUse,
    TenantUse,
)

MAX_TENANTS = 50  # of an interval; others are left out
MAX_REASONS = 50


class IntervalSums:
    """The sums of the current interval. Intervals begin at multiples of `INTERVAL_S`, on all gateways alike."""

    def __init__(self, gateway: str) -> None:
        self._gateway = gateway
        self._number: int | None = None  # of the interval; None before the first sample
        self._clear()

    def ended(self, record: FinishedRecord) -> None:
        outcome = record.judged()
        self._outcomes[outcome] += 1
        if outcome == "late":
            self._missed[record.objective.missed(record.ttft_ms, record.tpot_ms)] += 1
        for bad, counts in (("failed", self._failed), ("refused", self._refused)):
            if outcome == bad and (record.reason in counts or len(counts) < MAX_REASONS):
                counts[record.reason] += 1
        if record.output_tokens > 0:
            self._ttft[bucket(record.ttft_ms)] += 1
            self._prompt_tokens += record.prompt_tokens
            self._cached_tokens += record.cached_tokens
            self._output_tokens += record.output_tokens
        if record.output_tokens > 1:
            self._tpot[bucket(record.tpot_ms)] += 1
        if record.tenant and (record.tenant in self._tenants or len(self._tenants) < MAX_TENANTS):
            was = self._tenants.get(record.tenant, TenantUse())
            self._tenants[record.tenant] = TenantUse(
                was.requests + 1,
                was.good + record.good,
                was.prompt_tokens + record.prompt_tokens,
                was.output_tokens + record.output_tokens,
            )

    def sample(self, workers: Iterable[Worker], waiting: int, now: float) -> IntervalRecord | None:
        """Counts the workers' and the gate's state, once a second; returns the sums of an interval that has ended."""
        done = None
        number = int(now // INTERVAL_S)
        if self._number is not None and number > self._number:
            done = self._record((self._number + 1) * INTERVAL_S)
            self._clear()
        self._number = number
        self._samples += 1
        self._waiting += waiting
        for worker in workers:
            load, uses = worker.record.load, self._uses.setdefault(worker.record.role, Counter())
            uses.update(
                running=load.running, waiting=load.waiting, blocks_used=load.blocks_used, blocks=load.blocks_total
            )
        return done

    def _record(self, ended_at: float) -> IntervalRecord:
        samples = self._samples
        roles = {
            role: RoleUse(
                sums["running"] / samples, sums["waiting"] / samples, sums["blocks_used"] / (sums["blocks"] or 1)
            )
            for role, sums in self._uses.items()
        }
        return IntervalRecord(
            self._gateway,
            ended_at,
            dict(self._outcomes),
            dict(self._missed),
            dict(self._failed),
            dict(self._refused),
            dict(self._ttft),
            dict(self._tpot),
            self._prompt_tokens,
            self._cached_tokens,
            self._output_tokens,
            self._waiting / samples,
            roles,
            self._tenants,
        )

    def _clear(self) -> None:
        self._outcomes: Counter[Judgement] = Counter()
        self._missed: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._ttft: Counter[int] = Counter()
        self._tpot: Counter[int] = Counter()
        self._prompt_tokens = self._cached_tokens = self._output_tokens = 0
        self._samples = self._waiting = 0
        self._uses: dict[str, Counter[str]] = {}
        self._tenants: dict[str, TenantUse] = {}


def bucket(ms: float) -> int:
    """Returns the bucket of a time; all times below 0.1 ms share one."""
    return ceil(LATENCY_STEPS * log10(max(ms, 0.1)))
