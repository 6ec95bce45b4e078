"""Chooses the numbers of prefill and decode workers: one worker on each GPU, unless the user says otherwise."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from checkpoints.model_location import downloaded
from checkpoints.model_size import TYPICAL_SIZE, ModelSize, model_size
from launcher.host.gpus import USABLE_MEMORY_SHARE, gpu_name
from launcher.options import WorkersOptions
from pricing.gpu_rates import rates_of
from pricing.gpu_step_time import ModelShape, expected_costs
from pricing.worker_split import split, typical_sequences

UNSPLIT_NOTE = (
    "one GPU: decode workers serve whole requests, because a prefill worker beside them would hold the weights a second"
    " time and take turns with them; --prefill 1 splits"
)
UNSHARED_NOTE = "one GPU: a decode worker serves whole requests, because each worker takes a GPU of its own"


class GpusAtHand(NamedTuple):
    """GPUs for workers: of a host, whose workers may share a GPU, or of a cluster, whose workers may not."""

    number: int
    name: Callable[[], str]  # of the first GPU, by which rates are found
    entries: Sequence[str] = ()  # of CUDA_VISIBLE_DEVICES, on a host
    shared: bool = False


def gpus_of_host(entries: Sequence[str]) -> GpusAtHand:
    return GpusAtHand(len(entries), lambda: gpu_name(entries[0]), entries, shared=True)


class WorkerCounts(NamedTuple):
    """Numbers of workers; `None` in a user's wish leaves a number to the target."""

    prefill: int | None
    decode: int | None


class Settled(NamedTuple):
    """The numbers of workers that start, and a sentence about them where GPUs are, or ''."""

    prefill: int
    decode: int
    note: str


def settle(options: WorkersOptions, gpus: GpusAtHand, directory: Path | None, numa_nodes: int = 1) -> Settled:
    """Decides the numbers of workers.

    `directory`: the model's; None for a hub id. `numa_nodes`: of a host without GPUs, each with workers of its own.
    """

    def by_cost(workers: int) -> tuple[int, int]:
        found, engine = directory or downloaded(options.model), options.engine
        size = model_size(found, engine.dtype, engine.quantization) if found else TYPICAL_SIZE
        return expected_split(gpus.name(), size, workers)

    wish = WorkerCounts(options.prefill, options.decode)
    prefill, decode = counted(wish, gpus.number, by_cost, max(1, numa_nodes))
    return Settled(prefill, decode, note(wish, prefill, decode, gpus))


def expected_split(gpu: str, size: ModelSize, workers: int) -> tuple[int, int]:
    """Divides workers by the costs that a model is expected to have on the GPU of this name."""
    rates = rates_of(gpu)
    costs = expected_costs(ModelShape(size.parameters, size.weights_bytes, size.token_bytes), rates)
    room = USABLE_MEMORY_SHARE * rates.memory - size.weights_bytes
    return split(workers, costs, typical_sequences(room, size.token_bytes))


def counted(
    wish: WorkerCounts, gpus: int, by_cost: Callable[[int], tuple[int, int]], numa_nodes: int = 1
) -> tuple[int, int]:
    """Returns the numbers of prefill and decode workers: a number that the user left open fills the GPUs or nodes."""
    match wish:
        case (None, None) if gpus > 1:
            return by_cost(gpus)
        case (None, None):
            return (0, 1) if gpus else (numa_nodes, numa_nodes)
        case (None, int(decode)):
            return max(0, gpus - decode) if gpus else numa_nodes, decode
        case (int(prefill), None):
            return prefill, max(1, gpus - prefill) if gpus else numa_nodes
        case (int(prefill), int(decode)):
            return prefill, decode
    raise AssertionError(wish)


def note(wish: WorkerCounts, prefill: int, decode: int, gpus: GpusAtHand) -> str:
    """Returns a sentence about what the GPUs do. Workers that share GPUs as the user wished need none."""
    if gpus.number == 1 and wish.prefill is None and prefill + decode == 1:
        return UNSPLIT_NOTE if gpus.shared else UNSHARED_NOTE
    idle = gpus.number - prefill - decode
    if gpus.number < 2 or idle < 0:
        return ""
    split_ways = f"{_number(prefill, 'prefill worker')} and {_number(decode, 'decode worker')}"
    workers = split_ways if prefill else f"{_number(decode, 'decode worker')} without prefill workers"
    said = f"{gpus.number} GPUs: {workers}, each on a GPU of its own; --prefill and --decode change the numbers"
    named = f": {', '.join(gpus.entries[-idle:])}" if gpus.entries else ""
    return f"{said}; {_number(idle, 'GPU')} without work{named}" if idle else said


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
