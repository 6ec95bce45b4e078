"""Decides the numbers of worker pods: one worker on each GPU that the user offers, and the autoscalers' bounds."""

from pathlib import Path

from msgspec.structs import replace

from contracts.errors import ConfigError
from launcher.kubernetes.options import ManifestsConfig
from launcher.worker_counts import GpusAtHand, settle
from pricing.gpu_rates import GPU_RATES

MAX_SCALED_WORKERS = 4
"""Default bound of an autoscaler; without one where the workers have taken all GPUs of `--gpus`."""


def with_replicas(config: ManifestsConfig) -> tuple[ManifestsConfig, str]:
    """Returns the options with all numbers of workers decided, and a sentence about the GPUs or ''.

    Raises `ConfigError` if `--gpus` cannot work.
    """
    if config.gpus and config.device == "cpu":
        raise ConfigError("--gpus", config.gpus, "there are none with --device cpu")
    if config.gpu_name not in GPU_RATES:
        raise ConfigError("--gpu-name", config.gpu_name, f"known GPUs are {', '.join(GPU_RATES)}")
    directory = Path(config.model)
    gpus = GpusAtHand(config.gpus, lambda: config.gpu_name)
    prefill, decode, note = settle(config, gpus, directory if directory.is_dir() else None)
    if config.gpus and prefill + decode > config.gpus:
        why = f"--prefill {prefill} --decode {decode} take a GPU for each worker, {prefill + decode} in all"
        raise ConfigError("--gpus", config.gpus, why)
    bound = 0 if config.gpus else MAX_SCALED_WORKERS
    return replace(
        config,
        prefill=prefill,
        decode=decode,
        max_prefill=bound if config.max_prefill is None else config.max_prefill,
        max_decode=bound if config.max_decode is None else config.max_decode,
    ), note
