"""Chooses the numbers of workers and their GPUs: workers fill the GPUs, unless the user says otherwise."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from checkpoints.model_location import downloaded
from checkpoints.model_size import TYPICAL_SIZE, ModelSize, model_size
from checkpoints.pooling import read_pooling
from contracts.errors import ConfigError
from infra.config.engine import EngineOptions
from launcher.devices.gpus import USABLE_MEMORY_SHARE, gpu_name
from launcher.devices.rank_width import Widths, refuse_wider, widths_of, with_width
from launcher.options import WorkersOptions
from pricing.roofline.gpu_rates import rates_of
from pricing.roofline.gpu_step_time import ModelShape, expected_costs
from pricing.scaling.worker_split import split, typical_sequences

UNSPLIT_NOTE = (
    "one GPU: decode workers serve whole requests, because a prefill worker beside them would hold the weights a second"
    " time and take turns with them; --prefill 1 splits"
)
UNSHARED_NOTE = "one GPU: a decode worker serves whole requests, because each worker takes a GPU of its own"
MOST_GPUS_OF_A_NODE = 8
"""GPUs of a node of Kubernetes, whose nodes the command does not see, at most: as many as the largest width."""


class GpusAtHand(NamedTuple):
    """GPUs for workers: of a host, whose workers may share a GPU, or of a cluster, whose workers may not."""

    of_hosts: Sequence[int]  # each host's number; none: workers compute on CPUs, or a cluster has what they ask for
    name: Callable[[], str]  # of the first GPU, by which rates are found
    entries: Sequence[str] = ()  # of CUDA_VISIBLE_DEVICES, on a host
    shared: bool = False
    most: int = 0  # GPUs of the largest host

    @property
    def number(self) -> int:
        return sum(self.of_hosts)

    def workers(self, width: int) -> int:
        """Returns how many workers of this width there can be."""
        return sum(number // width for number in self.of_hosts)

    def beside(self, others: int, their_width: int, width: int) -> int:
        """Returns how many workers of a width there can be beside `others`; negative for too many of those."""
        if width == their_width:
            return self.workers(width) - others
        return (self.number - others * their_width) // width


def gpus_of_host(entries: Sequence[str]) -> GpusAtHand:
    count = len(entries)
    return GpusAtHand([count] if count else [], lambda: gpu_name(entries[0]), entries, shared=True, most=count)


class WorkerCounts(NamedTuple):
    """Numbers of workers; `None` in a user's wish leaves a number to the target."""

    prefill: int | None
    decode: int | None


class Settled(NamedTuple):
    """The numbers of workers that start, their engines' options, and sentences about them where GPUs are."""

    prefill: int
    decode: int
    engine: EngineOptions
    notes: list[str]


def settle(options: WorkersOptions, gpus: GpusAtHand, directory: Path | None, numa_nodes: int = 1) -> Settled:
    """Decides the numbers of workers, and how many GPUs each has.

    `directory`: the model's; None for a hub id. `numa_nodes`: of a host without GPUs, each with workers of its own.
    Raises `ConfigError` for workers that take more GPUs than there are, and `ModelError` for a model of vectors that is
    not served.
    """
    engine, about_width = with_gpus(options, gpus, directory)
    widths = widths_of(engine)

    def by_cost(workers: int) -> tuple[int, int]:
        return expected_split(gpus.name(), sized(options, directory), workers, max(widths))

    wish = WorkerCounts(options.prefill, options.decode)
    if options.prefill is None and directory is not None and read_pooling(directory, options.engine) is not None:
        wish = wish._replace(prefill=0)  # nothing is handed over
    prefill, decode = counted(wish, gpus, widths, by_cost, max(1, numa_nodes))
    taken = prefill * widths.prefill + decode * widths.decode
    if gpus.shared and gpus.number and max(widths) > 1 and taken > gpus.number:
        workers = f"{_number(prefill, 'prefill worker')} and {_number(decode, 'decode worker')}"
        why = f"{workers} take {taken} GPUs, and this host has {gpus.number}; --prefill and --decode change the numbers"
        raise ConfigError("--tensor-parallel", max(widths), why)
    about_gpus = note(wish, WorkerCounts(prefill, decode), gpus, widths)
    return Settled(prefill, decode, engine, [each for each in (about_width, about_gpus) if each])


def with_gpus(options: WorkersOptions, gpus: GpusAtHand, directory: Path | None) -> tuple[EngineOptions, str]:
    """Returns the engines' options with a width where GPUs are, and a sentence about it or ''.

    Raises `ConfigError` for a width that no host has.
    """
    if not gpus.most:
        return options.engine, ""
    refuse_wider(options.engine, gpus.most, "this host" if gpus.shared else "the largest node")
    return with_width(options.engine, rates_of(gpus.name()), gpus.most, lambda: sized(options, directory))


def sized(options: WorkersOptions, directory: Path | None) -> ModelSize:
    """Returns the model's size; a typical size for a model that is not on this host yet."""
    found, engine = directory or downloaded(options.model), options.engine
    return model_size(found, engine.dtype, engine.quantization) if found else TYPICAL_SIZE


def expected_split(gpu: str, size: ModelSize, workers: int, width: int = 1) -> tuple[int, int]:
    """Divides workers by the costs that a model is expected to have on `width` GPUs of this name."""
    rates = rates_of(gpu).together(width)
    costs = expected_costs(ModelShape(size.parameters, size.weights_bytes, size.token_bytes), rates)
    room = USABLE_MEMORY_SHARE * rates.memory - size.weights_bytes
    return split(workers, costs, typical_sequences(room, size.token_bytes))


def counted(
    wish: WorkerCounts,
    gpus: GpusAtHand,
    widths: Widths,
    by_cost: Callable[[int], tuple[int, int]],
    numa_nodes: int = 1,
) -> tuple[int, int]:
    """Returns the numbers of prefill and decode workers: a number that the user left open fills the GPUs or nodes."""
    workers = gpus.workers(max(widths))
    match wish:
        case (None, None) if workers > 1:
            prefill, _ = by_cost(workers)
            return prefill, gpus.beside(prefill, widths.prefill, widths.decode)
        case (None, None):
            return (0, 1) if gpus.number else (numa_nodes, numa_nodes)
        case (None, int(decode)):
            fitting = max(0, gpus.beside(decode, widths.decode, widths.prefill))
            return fitting if gpus.number else numa_nodes, decode
        case (int(prefill), None):
            fitting = max(1, gpus.beside(prefill, widths.prefill, widths.decode))
            return prefill, fitting if gpus.number else numa_nodes
        case (int(prefill), int(decode)):
            return prefill, decode
    raise AssertionError(wish)


def note(wish: WorkerCounts, counts: WorkerCounts, gpus: GpusAtHand, widths: Widths) -> str:
    """Returns a sentence about what the GPUs do. Workers that share GPUs as the user wished need none."""
    prefill, decode = counts.prefill or 0, counts.decode or 0
    if gpus.number == 1 and wish.prefill is None and prefill + decode == 1:
        return UNSPLIT_NOTE if gpus.shared else UNSHARED_NOTE
    idle = gpus.number - prefill * widths.prefill - decode * widths.decode
    if gpus.number < 2 or idle < 0:
        return ""
    split_ways = f"{_number(prefill, 'prefill worker')} and {_number(decode, 'decode worker')}"
    workers = split_ways if prefill else f"{_number(decode, 'decode worker')} without prefill workers"
    said = f"{gpus.number} GPUs: {workers}, {_each(prefill, widths)}; --prefill and --decode change the numbers"
    named = f": {', '.join(gpus.entries[-idle:])}" if gpus.entries and max(widths) == 1 else ""
    return f"{said}; {_number(idle, 'GPU')} without work{named}" if idle else said


def _each(prefill: int, widths: Widths) -> str:
    of_prefill, of_decode = ("a GPU" if width == 1 else f"{width} GPUs" for width in widths)
    if not prefill or of_prefill == of_decode:
        return f"each on {of_decode} of its own"
    return f"each prefill worker on {of_prefill} of its own and each decode worker on {of_decode}"


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
