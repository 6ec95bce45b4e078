"""Step costs that running workers have fitted, in the file that `baton bench --calibrate` writes for `simulate`."""

import random
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean, median

import msgspec
import uvloop
from msgspec import Struct

from contracts.errors import ConfigError, GatewayError
from contracts.slo import Timings
from infra.redis.records import Role, WorkerRecord
from launcher.bench.options import BenchConfig
from launcher.bench.sender import Sender, connections_to
from launcher.instance.endpoint import ClientEndpoint
from pricing.roofline.device_use import StepTotals
from pricing.routes.pooled import COEFFICIENT_NAMES
from pricing.step_costs.steps import StepCosts, pairs_of
from workloads.lengths import Lengths
from workloads.outcome import RequestOutcome
from workloads.request import Workload

CALIBRATION_FORM = 1
ALONE_REQUESTS, ALONE_PROMPT_TOKENS, ALONE_OUTPUT_TOKENS = 8, 64, 32


class CalibratedWorker(Struct, frozen=True, kw_only=True):
    """A worker of a role: its step costs, and its memory for KV."""

    costs: StepCosts
    kv_tokens: int
    token_bytes: int


class Calibration(Struct, frozen=True, kw_only=True):
    """The workers of a deployment by role, each coefficient the median of a role's workers."""

    form: int = CALIBRATION_FORM
    model: str
    device: str
    front_ms: float
    """Time of a lone request's first token beside its steps: HTTP, Redis, threads of gateway and workers."""
    pause_ms: float
    """Time of each further token beside its step: the worker's work between two steps, and messages with tokens."""
    prefill: CalibratedWorker | None = None
    decode: CalibratedWorker

    def of(self, role: Role) -> CalibratedWorker:
        """Returns the costs of a role's workers; decode workers stand in where there are no prefill workers."""
        return self.prefill or self.decode if role == "prefill" else self.decode


class _Stats(Struct):
    workers: list[WorkerRecord]


def calibrate(
    endpoint: ClientEndpoint, config: BenchConfig, model: str, before: Sequence[WorkerRecord] = ()
) -> Calibration:
    """Sends requests one at a time, and reads the step costs that the workers have learned. Raises `GatewayError`.

    `before`: records of the workers from before a load; without them the load is all steps since the workers' start.
    The costs are those of the load: lone requests teach other costs, since whatever shares the workers' cores is
    idle then. The time of a lone request beside its steps is computed with the costs after it.
    """
    loaded = workers_of(endpoint)
    alone = uvloop.run(_alone(endpoint, config, model))
    after = workers_of(endpoint)
    prefill, decode = (_of_role(after, role, loaded) for role in ("prefill", "decode"))
    if decode is None:
        raise GatewayError(f"{endpoint.url}: no decode worker has run a step, so no costs are known")
    prompt_s = (prefill or decode).costs.prompt_seconds(ALONE_PROMPT_TOKENS, pairs_of(0, ALONE_PROMPT_TOKENS))
    step_s = decode.costs.decode_seconds(1, ALONE_PROMPT_TOKENS + ALONE_OUTPUT_TOKENS // 2)
    return Calibration(
        model=after[0].model,
        device=after[0].device,
        front_ms=max(0.0, median([each.ttft_ms for each in alone]) - 1000 * prompt_s),
        pause_ms=max(0.0, fmean([each.tpot_ms() for each in alone]) - 1000 * step_s),
        prefill=_of_role(loaded, "prefill", before) or prefill,
        decode=_of_role(loaded, "decode", before) or decode,
    )


def workers_of(endpoint: ClientEndpoint) -> list[WorkerRecord]:
    """Returns the records of a Baton's workers now. Raises `GatewayError` for another server's endpoint."""
    client = endpoint.client()
    try:
        return msgspec.json.decode(client.get("/stats"), type=_Stats).workers
    except msgspec.DecodeError:
        raise GatewayError(f"{client.url}/stats is not a Baton's, so no worker there tells its costs") from None


async def _alone(endpoint: ClientEndpoint, config: BenchConfig, model: str) -> list[Timings]:
    """Sends requests one after the other, and returns the timings of their answers. Raises `GatewayError`."""
    prompt = Lengths(ALONE_PROMPT_TOKENS, ALONE_PROMPT_TOKENS)
    workload = Workload(prompt, Lengths(ALONE_OUTPUT_TOKENS, ALONE_OUTPUT_TOKENS))
    requests = islice(workload.requests(random.Random()), ALONE_REQUESTS)
    outcomes = list[RequestOutcome]()
    async with connections_to(endpoint, config.timeout) as connections:
        sender = Sender(connections, model, config.vocabulary, outcomes.append)
        for each in requests:
            await sender.exchange(each, 0.0)
    timings = [each.timings for each in outcomes if each.timings is not None]
    if len(timings) < ALONE_REQUESTS:
        raise GatewayError(f"a request that measures costs failed: {outcomes[-1].error}")
    return timings


def read_calibration(path: str, option: str) -> Calibration:
    """Reads a file of `baton bench --calibrate`. Raises `ConfigError` that names the option for any other file."""
    try:
        read = msgspec.json.decode(Path(path).read_bytes(), type=Calibration)
    except OSError as error:
        raise ConfigError(option, path, error.strerror or "cannot be read") from None
    except msgspec.DecodeError as error:
        raise ConfigError(option, path, f"was not written by bench --calibrate: {error}") from None
    if read.form != CALIBRATION_FORM:
        raise ConfigError(option, path, f"has form {read.form}; this version reads form {CALIBRATION_FORM}")
    for role, worker in (("prefill", read.prefill), ("decode", read.decode)):
        if worker is not None and not worker.costs.known:
            raise ConfigError(option, path, f"has no prompt_token of {role} workers, the seconds of a prompt's token")
    return read


def _of_role(workers: Sequence[WorkerRecord], role: str, before: Sequence[WorkerRecord]) -> CalibratedWorker | None:
    """Returns the median of a role's workers over the steps since `before`; None if no worker has ever run a step."""
    found = [each for each in workers if each.role == role and each.load.costs.steps and each.load.costs.known]
    if not found:
        return None
    earlier = {each.epoch: each.load.step_totals for each in before}
    costs = [
        _taken(each.load.costs, each.load.step_totals.since(earlier.get(each.epoch, StepTotals()))) for each in found
    ]
    pooled = {name: median([getattr(each, name) for each in costs]) for name in COEFFICIENT_NAMES}
    memory = found[0].memory
    return CalibratedWorker(
        costs=msgspec.structs.replace(costs[0], **pooled), kv_tokens=memory.tokens, token_bytes=memory.token_bytes
    )


def _taken(costs: StepCosts, totals: StepTotals) -> StepCosts:
    """Returns the costs at the mean level of these steps; a worker's own level is that of its last thirty steps."""
    factor = totals.over(costs)
    return msgspec.structs.replace(costs, **{name: factor * getattr(costs, name) for name in COEFFICIENT_NAMES})
