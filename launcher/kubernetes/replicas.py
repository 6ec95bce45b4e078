"""Decides the numbers of worker pods, which fill the GPUs that the user offers, and the autoscalers' bounds."""

from pathlib import Path

from msgspec.structs import replace

from contracts.errors import ConfigError
from launcher.devices.rank_width import widths_of
from launcher.devices.worker_counts import MAX_GPUS_PER_NODE, AvailableGpus, decide_workers
from launcher.kubernetes.options import ManifestsConfig
from pricing.roofline.gpu_rates import GPU_RATES

MAX_SCALED_WORKERS = 4
"""Default bound of an autoscaler; without one where the workers have taken all GPUs of `--gpus`."""


def with_replicas(config: ManifestsConfig) -> tuple[ManifestsConfig, list[str]]:
    """Returns the options with all numbers of workers and their widths decided, and sentences about the GPUs.

    Raises `ConfigError` if `--gpus` cannot work.
    """
    if config.gpus and config.device == "cpu":
        raise ConfigError("--gpus", config.gpus, "there are none with --device cpu")
    if config.gpu_name not in GPU_RATES:
        raise ConfigError("--gpu-name", config.gpu_name, f"known GPUs are {', '.join(GPU_RATES)}")
    directory = Path(config.model)
    most = 0 if config.device == "cpu" else min(config.gpus or MAX_GPUS_PER_NODE, MAX_GPUS_PER_NODE)
    gpus = AvailableGpus([config.gpus] if config.gpus else [], lambda: config.gpu_name, most=most)
    prefill, decode, engine, notes = decide_workers(config, gpus, directory if directory.is_dir() else None)
    widths = widths_of(engine)
    taken = prefill * widths.prefill + decode * widths.decode
    if config.gpus and taken > config.gpus:
        each = "a GPU for each rank" if max(widths) > 1 else "a GPU for each worker"
        raise ConfigError("--gpus", config.gpus, f"--prefill {prefill} --decode {decode} take {each}, {taken} in all")
    bound = 0 if config.gpus else MAX_SCALED_WORKERS
    return replace(
        config,
        prefill=prefill,
        decode=decode,
        engine=engine,
        max_prefill=bound if config.max_prefill is None else config.max_prefill,
        max_decode=bound if config.max_decode is None else config.max_decode,
    ), notes
