"""Says in words what would help a deployment, from what its workers and requests did lately. Pure."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from contracts.slo import NO_OBJECTIVE, Objective, percentile
from dashboard.reading.figures import stages
from dashboard.reading.source import Snapshot
from dashboard.units import as_ms, as_share
from infra.redis.records import FinishedRecord, Role, StatsSample, WorkerRecord
from pricing.roofline.device_use import DeviceUse, device_use

WINDOW_S = 60.0
USUAL_OBJECTIVE = Objective(2000.0, 100.0)
"""Objective of a deployment that has none of its own."""
BUSY, IDLE = 0.7, 0.35
"""Shares of the time in which a role's workers compute: above the first they are the limit, below the second not."""
LONG_WAIT_SHARE = 0.25
"""Share of the limit on TTFT that prompts may wait."""
FULL_KV_SHARE = 0.9
MIN_REQUESTS = 5
"""Requests from which their times say something."""
BINDING_WORDS = {"memory": "reading memory binds their steps", "products": "products bind their steps", "": ""}


class WorkersLately(Struct, frozen=True):
    """Workers of a role: their number, mean use, and share of KV blocks that sequences hold."""

    workers: int
    busy: float
    kv_share: float
    binds: str = ""


class LatelySeen(Struct, frozen=True):
    """A minute of a deployment: medians and 90th percentiles of requests, ms, and the roles' use."""

    requests: int
    wait_ms: float
    ttft_ms: float
    tpot_ms: float
    roles: Mapping[Role, WorkersLately]
    objective: Objective = NO_OBJECTIVE


def advise(seen: LatelySeen) -> str:
    """Returns a sentence: what is the limit, by which figures, and what would help."""
    limits = seen.objective.over(USUAL_OBJECTIVE)
    assert limits.ttft_ms is not None and limits.tpot_ms is not None
    first, second = seen.roles.get("prefill"), seen.roles.get("decode")
    if second is None or seen.requests < MIN_REQUESTS:
        return ""
    if seen.wait_ms > LONG_WAIT_SHARE * limits.ttft_ms:
        return f"Prompts wait {as_ms(seen.wait_ms)}, {_prompts_help(first, second)}."
    if seen.tpot_ms > limits.tpot_ms:
        binds = f" ({words})" if (words := BINDING_WORDS[second.binds]) else ""
        if first is None:
            return (
                f"TPOT is {as_ms(seen.tpot_ms)}, workers are {as_share(second.busy)} busy{binds}: prompts are computed "
                "beside the answers; a prefill worker (--prefill 1) or a smaller --step-ms would help."
            )
        return (
            f"TPOT is {as_ms(seen.tpot_ms)}, decode workers are {as_share(second.busy)} busy{binds}: "
            "add a decode worker, or quantize (--quantization fp8)."
        )
    return _spare(first, second)


def _prompts_help(first: WorkersLately | None, second: WorkersLately) -> str:
    if second.kv_share > FULL_KV_SHARE:
        return (
            f"decode workers' KV is {as_share(second.kv_share)} in use: add a decode worker, "
            "or store KV in a byte (--kv-dtype fp8)"
        )
    if first is None:
        return f"workers are {as_share(second.busy)} busy: add a worker"
    if first.busy > BUSY and second.busy < IDLE:
        turned = ", or start one decode worker fewer in its favour" if second.workers > 1 else ""
        return f"decode workers are {as_share(second.busy)} busy: add a prefill worker{turned}"
    if first.busy > BUSY:
        return (
            f"prefill workers are {as_share(first.busy)} and decode workers {as_share(second.busy)} busy: "
            "add a prefill worker"
        )
    return (
        f"though prefill workers are {as_share(first.busy)} busy: requests come in bursts, or their objective holds "
        "them at the gate"
    )


def _spare(first: WorkersLately | None, second: WorkersLately) -> str:
    uses = [("decode", second)] if first is None else [("prefill", first), ("decode", second)]
    spare = [name for name, use in uses if use.workers > 1 and use.busy * use.workers / (use.workers - 1) < IDLE]
    busy = " and ".join(f"{name} workers {as_share(use.busy)}" for name, use in uses)
    if spare:
        return f"Nothing waits, and {busy} busy: one {spare[0]} worker fewer would do."
    return f"Nothing waits; {busy} busy."


def lately(snapshot: Snapshot) -> LatelySeen:
    """Summarizes the last minute of a reading."""
    since = snapshot.now - WINDOW_S
    answered = [each for each in snapshot.finished if each.ended_at > since and each.output_tokens > 0]
    roles: dict[Role, WorkersLately] = {}
    for role in ("prefill", "decode"):
        records = [view.record for view in snapshot.workers if view.role == role and view.record is not None]
        if records:
            roles[role] = _role_use(records, snapshot.samples, since)
    return LatelySeen(
        len(answered),
        percentile([_waited(each) for each in answered], 0.5),
        percentile([each.ttft_ms for each in answered], 0.9),
        percentile([each.tpot_ms for each in answered if each.output_tokens > 1], 0.9),
        roles,
        snapshot.gateways[0].objective if snapshot.gateways else NO_OBJECTIVE,
    )


def worker_use(record: WorkerRecord, life: Sequence[StatsSample], since: float) -> DeviceUse | None:
    """Computes a worker's use of its device since a time, from its load samples; None with fewer than two samples."""
    recent = [sample for sample in life if sample.at >= since]
    if len(recent) < 2:
        return None
    totals = recent[-1].load.step_totals.since(recent[0].load.step_totals)
    memory = record.memory
    return device_use(totals, recent[-1].at - recent[0].at, memory.weights_bytes, memory.token_bytes, record.figures)


def _role_use(
    records: Sequence[WorkerRecord], samples: Mapping[str, Sequence[StatsSample]], since: float
) -> WorkersLately:
    found = (worker_use(record, samples.get(record.epoch, ()), since) for record in records)
    uses = [use for use in found if use is not None]
    blocks = sum(record.load.blocks_total for record in records)
    binding = {use.binds for use in uses}
    return WorkersLately(
        len(records),
        sum(use.busy for use in uses) / len(records),
        sum(record.load.blocks_used for record in records) / blocks if blocks else 0.0,
        binding.pop() if len(binding) == 1 else "",
    )


def _waited(record: FinishedRecord) -> float:
    return stages(record)[0].ms
