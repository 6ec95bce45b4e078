"""Chooses the numbers of workers and their GPUs: workers fill the GPUs, unless the user says otherwise."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from checkpoints.model_location import downloaded
from checkpoints.model_size import TYPICAL_SIZE, ModelSize, model_size
from checkpoints.pooling import read_pooling
from contracts.errors import ConfigError
from infra.config.engine import EngineOptions
from launcher.counted_noun import counted_noun
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
MAX_GPUS_PER_NODE = 8
"""The largest assumed number of GPUs of a Kubernetes node: `baton manifests` does not see the nodes."""


class AvailableGpus(NamedTuple):
    """The GPUs that workers may take: those of one host, or those of a cluster's nodes."""

    per_host: Sequence[int]  # number of GPUs of each host; none: workers compute on CPUs, or the cluster is unknown
    name: Callable[[], str]  # returns the name of the first GPU, by which its rates are found
    entries: Sequence[str] = ()  # of CUDA_VISIBLE_DEVICES, on one host
    shared: bool = False  # several workers may compute on one GPU
    most: int = 0  # GPUs of the largest host

    @property
    def number(self) -> int:
        return sum(self.per_host)

    def workers(self, width: int) -> int:
        """Returns the number of workers of `width` GPUs that fit on the hosts."""
        return sum(number // width for number in self.per_host)

    def beside(self, others: int, their_width: int, width: int) -> int:
        """Returns the number of workers of `width` GPUs that fit beside `others` of `their_width` GPUs.

        Negative if the others alone take too many GPUs.
        """
        if width == their_width:
            return self.workers(width) - others
        return (self.number - others * their_width) // width


def gpus_of_host(entries: Sequence[str]) -> AvailableGpus:
    count = len(entries)
    return AvailableGpus([count] if count else [], lambda: gpu_name(entries[0]), entries, shared=True, most=count)


class WorkerCounts(NamedTuple):
    """Numbers of workers of each role; None: the user leaves the number to the target."""

    prefill: int | None
    decode: int | None


class DecidedWorkers(NamedTuple):
    """The numbers of workers that start, and the options of their engines."""

    prefill: int
    decode: int
    engine: EngineOptions  # with the number of ranks of a worker
    notes: list[str]  # sentences about the use of the GPUs, for the user


def decide_workers(
    options: WorkersOptions, gpus: AvailableGpus, directory: Path | None, numa_nodes: int = 1
) -> DecidedWorkers:
    """Decides the numbers of workers, and the number of GPUs of each worker.

    `directory`: the model's; None for a hub id. `numa_nodes`: number of NUMA nodes of a host without GPUs that get
    workers of their own.
    Raises `ConfigError` for workers that take more GPUs than there are, and `ModelError` for a model of vectors that is
    not served.
    """
    engine, about_width = with_rank_width(options, gpus, directory)
    widths = widths_of(engine)

    def by_cost(workers: int) -> tuple[int, int]:
        return expected_split(gpus.name(), model_size_of(options, directory), workers, max(widths))

    wish = WorkerCounts(options.prefill, options.decode)
    if options.prefill is None and directory is not None and read_pooling(directory, options.engine) is not None:
        wish = wish._replace(prefill=0)  # nothing is handed over
    prefill, decode = filled_counts(wish, gpus, widths, by_cost, max(1, numa_nodes))
    taken = prefill * widths.prefill + decode * widths.decode
    if gpus.shared and gpus.number and max(widths) > 1 and taken > gpus.number:
        workers = f"{counted_noun(prefill, 'prefill worker')} and {counted_noun(decode, 'decode worker')}"
        why = f"{workers} take {taken} GPUs, and this host has {gpus.number}; --prefill and --decode change the numbers"
        raise ConfigError("--tensor-parallel", max(widths), why)
    about_gpus = gpu_use_note(wish, WorkerCounts(prefill, decode), gpus, widths)
    return DecidedWorkers(prefill, decode, engine, [each for each in (about_width, about_gpus) if each])


def with_rank_width(options: WorkersOptions, gpus: AvailableGpus, directory: Path | None) -> tuple[EngineOptions, str]:
    """Returns the engines' options with the number of ranks of a worker, and a sentence about it or ''.

    Without GPUs the options stay as they are. Raises `ConfigError` for more ranks than a host has GPUs.
    """
    if not gpus.most:
        return options.engine, ""
    refuse_wider(options.engine, gpus.most, "this host" if gpus.shared else "the largest node")
    return with_width(options.engine, rates_of(gpus.name()), gpus.most, lambda: model_size_of(options, directory))


def model_size_of(options: WorkersOptions, directory: Path | None) -> ModelSize:
    """Returns the model's size; a typical size for a model that is not on this host yet."""
    found, engine = directory or downloaded(options.model), options.engine
    return model_size(found, engine.dtype, engine.quantization) if found else TYPICAL_SIZE


def expected_split(gpu: str, size: ModelSize, workers: int, width: int = 1) -> tuple[int, int]:
    """Returns the numbers of prefill and decode workers by the expected step times on `width` GPUs of this name."""
    rates = rates_of(gpu).together(width)
    costs = expected_costs(ModelShape(size.parameters, size.weights_bytes, size.token_bytes), rates)
    room = USABLE_MEMORY_SHARE * rates.memory - size.weights_bytes
    return split(workers, costs, typical_sequences(room, size.token_bytes))


def filled_counts(
    wish: WorkerCounts,
    gpus: AvailableGpus,
    widths: Widths,
    by_cost: Callable[[int], tuple[int, int]],
    numa_nodes: int = 1,
) -> tuple[int, int]:
    """Returns the numbers of prefill and decode workers: a number that the user left open fills the GPUs or NUMA nodes.

    `by_cost` divides a number of workers into prefill and decode workers.
    """
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


def gpu_use_note(wish: WorkerCounts, counts: WorkerCounts, gpus: AvailableGpus, widths: Widths) -> str:
    """Returns a sentence about which workers are on the GPUs, and which GPUs are idle.

    Empty on hosts without GPUs, and where the user wished for more workers than GPUs.
    """
    prefill, decode = counts.prefill or 0, counts.decode or 0
    if gpus.number == 1 and wish.prefill is None and prefill + decode == 1:
        return UNSPLIT_NOTE if gpus.shared else UNSHARED_NOTE
    idle = gpus.number - prefill * widths.prefill - decode * widths.decode
    if gpus.number < 2 or idle < 0:
        return ""
    split_ways = f"{counted_noun(prefill, 'prefill worker')} and {counted_noun(decode, 'decode worker')}"
    workers = split_ways if prefill else f"{counted_noun(decode, 'decode worker')} without prefill workers"
    said = f"{gpus.number} GPUs: {workers}, {_gpus_of_each(prefill, widths)}; --prefill and --decode change the numbers"
    named = f": {', '.join(gpus.entries[-idle:])}" if gpus.entries and max(widths) == 1 else ""
    return f"{said}; {counted_noun(idle, 'GPU')} without work{named}" if idle else said


def _gpus_of_each(prefill: int, widths: Widths) -> str:
    of_prefill, of_decode = ("a GPU" if width == 1 else f"{width} GPUs" for width in widths)
    if not prefill or of_prefill == of_decode:
        return f"each on {of_decode} of its own"
    return f"each prefill worker on {of_prefill} of its own and each decode worker on {of_decode}"
