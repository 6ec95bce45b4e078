"""Deployments that a plan weighs: every kind of device, width and format, split or not, with the fewest workers.

Prefill and decode workers are chosen apart, since prefill workers decide TTFT, and decode workers TPOT. For each copy
the fewest workers that keep the limit are taken: more workers cost more, and fewer miss the limit.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct

from pricing.planning.load import PlannedLoad
from pricing.planning.roles import ModelCopy, RoleEstimate, both, decode, prefill

MAX_ROLE_WORKERS = 64
HEADROOM_BISECTIONS = 12
MAX_HEADROOM = 8.0
RoleFigures = Callable[[ModelCopy, int, PlannedLoad], RoleEstimate]


class CopyFormat(Struct, frozen=True):
    """Number formats of a copy, as --quantization and --kv-dtype name them."""

    weights: str
    kv: str

    @property
    def changes(self) -> int:
        """Number of formats, of weights and of KV, that differ from the model's own; 0: answers do not change."""
        return (self.weights != "none") + (self.kv != "auto")

    def __str__(self) -> str:
        return (
            f"{'16 bits' if self.weights == 'none' else self.weights}, KV {'16 bits' if self.kv == 'auto' else self.kv}"
        )


class PlannedDeployment(Struct, frozen=True):
    """Workers of a deployment. Without `prefill`, decode workers compute prompts, too."""

    form: CopyFormat
    decode: RoleEstimate
    prefill: RoleEstimate | None = None

    @property
    def roles(self) -> Sequence[RoleEstimate]:
        return [self.decode] if self.prefill is None else [self.prefill, self.decode]

    @property
    def dollars_per_hour(self) -> float:
        return sum(role.workers * role.copy.dollars_per_hour for role in self.roles)

    @property
    def ttft_s(self) -> float:
        return max(role.ttft_s for role in self.roles)

    @property
    def tpot_s(self) -> float:
        return self.decode.tpot_s

    def devices(self) -> Counter[str]:
        return sum(
            (Counter({role.copy.device.name: role.workers * role.copy.capacity.gpus}) for role in self.roles),
            Counter[str](),
        )

    def within(self, available: Mapping[str, int]) -> bool:
        return all(count <= available.get(name, 0) for name, count in self.devices().items())

    def under(self, load: PlannedLoad) -> "PlannedDeployment":
        """Returns the same workers with the estimates of another load."""
        if self.prefill is None:
            return PlannedDeployment(self.form, both(self.decode.copy, self.decode.workers, load))
        first = prefill(self.prefill.copy, self.prefill.workers, load)
        return PlannedDeployment(self.form, decode(self.decode.copy, self.decode.workers, load), first)

    def meets(self, load: PlannedLoad) -> bool:
        return all(role.meets(load) for role in self.roles)

    def with_workers(self, load: PlannedLoad, prefill_more: int, decode_more: int) -> "PlannedDeployment | None":
        """Returns the deployment with more or fewer workers; None if a role would have no worker left."""
        second = msgspec.structs.replace(self.decode, workers=self.decode.workers + decode_more)
        first = self.prefill
        if first is not None:
            first = msgspec.structs.replace(first, workers=first.workers + prefill_more)
        changed = PlannedDeployment(self.form, second, first)
        return changed.under(load) if min(role.workers for role in changed.roles) > 0 else None


def candidates(copies: Mapping[CopyFormat, Sequence[ModelCopy]], load: PlannedLoad) -> list[PlannedDeployment]:
    """Returns the deployments that keep the limits by estimate, the cheapest first.

    Deployments of equal cost are in order of the number of changed formats, then of the distance from their limits.
    """
    found = [each for form, alike in copies.items() for each in _of_format(form, alike, load)]
    return sorted(found, key=lambda each: (each.dollars_per_hour, each.form.changes, _strain(each, load)))


def cheaper(
    deployment: PlannedDeployment, copies: Mapping[CopyFormat, Sequence[ModelCopy]], load: PlannedLoad
) -> PlannedDeployment | None:
    """Returns the dearest deployment that is one change cheaper: a worker fewer, a cheaper copy, no split."""
    first, second = deployment.prefill, deployment.decode
    others = [
        PlannedDeployment(deployment.form, msgspec.structs.replace(second, copy=copy), first)
        for copy in copies[deployment.form]
    ]
    if first is not None:
        others.append(PlannedDeployment(deployment.form, second))
        others += [
            PlannedDeployment(deployment.form, second, msgspec.structs.replace(first, copy=copy))
            for copy in copies[deployment.form]
        ]
    fewer = [deployment.with_workers(load, -1, 0), deployment.with_workers(load, 0, -1)]
    every = [*(each.under(load) for each in others), *(each for each in fewer if each is not None)]
    less = [each for each in every if each.dollars_per_hour < deployment.dollars_per_hour]
    return max(less, key=lambda each: each.dollars_per_hour, default=None)


def _of_format(form: CopyFormat, copies: Sequence[ModelCopy], load: PlannedLoad) -> Iterator[PlannedDeployment]:
    yield from (PlannedDeployment(form, alone) for copy in copies if (alone := _fewest(both, copy, load)))
    decoders = [found for copy in copies if (found := _fewest(decode, copy, load))]
    for copy in copies:
        if first := _fewest(prefill, copy, load):
            yield from (PlannedDeployment(form, second, first) for second in decoders)


def _fewest(role: RoleFigures, copy: ModelCopy, load: PlannedLoad) -> RoleEstimate | None:
    """Returns the estimate of the fewest workers that keep the limits; None if `MAX_ROLE_WORKERS` miss them."""
    if not role(copy, MAX_ROLE_WORKERS, load).meets(load):
        return None
    low, high = 0, MAX_ROLE_WORKERS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if role(copy, middle, load).meets(load) else (middle, high)
    return role(copy, high, load)


def _strain(deployment: PlannedDeployment, load: PlannedLoad) -> float:
    """Returns the larger ratio of an estimate to its limit, of TTFT or of TPOT."""
    return max(deployment.ttft_s / load.ttft_s, deployment.tpot_s / load.tpot_s)


def headroom(deployment: PlannedDeployment, load: PlannedLoad) -> float:
    """Returns by how much the rate may grow until the estimates miss a limit; 0.2: by a fifth."""
    low, high = 1.0, 1 + MAX_HEADROOM
    for _ in range(HEADROOM_BISECTIONS):
        middle = (low + high) / 2
        busier = msgspec.structs.replace(load, rate=middle * load.rate)
        low, high = (middle, high) if deployment.under(busier).meets(busier) else (low, middle)
    return low - 1
