"""Defines the paths and commands inside the image that the Dockerfile builds, for Compose and for Kubernetes."""

from contracts.version import BATON_VERSION
from launcher.containers.yaml_text import Value
from launcher.deployment import Service, Volume

IMAGE = f"baton:{BATON_VERSION}"
APP_DIRECTORY = "/app"
DEMO_WEIGHTS = f"{APP_DIRECTORY}/demo_model/weights"
PYTHON_COMMAND = ("python",)  # run in APP_DIRECTORY, which the image's PYTHONPATH names
USER_ID = 1000
HOME_DIRECTORY = "/home/baton"
MODELS_DIRECTORY = "/models"  # mount point of a host directory or volume with models
RUN_DIRECTORY = "/run/baton"
STATUS_FILE = f"{RUN_DIRECTORY}/status"
RANKS_SHARED_MEMORY = 1 << 30
"""Bytes of /dev/shm for workers of several GPUs, where NCCL may pass messages; a container's default is 64 MiB."""

DATA_DIRECTORIES: dict[Volume, str] = {
    "redis": "/data",
    "models": f"{HOME_DIRECTORY}/.cache/huggingface",
    "cache": f"{HOME_DIRECTORY}/.cache/baton",  # compiled operators and kernels, tuned tables, unpacked GGUF models
}
"""Mount point of each volume."""
TRITON_CACHE = f"{DATA_DIRECTORIES['cache']}/triton"  # compiled kernels, which the Dockerfile's TRITON_CACHE_DIR names

READY_MARK = '"stage":"ready"'
"""What the line of a ready service's status file contains."""

LOG_LIMITS: Value = {"driver": "json-file", "options": {"max-size": "16m", "max-file": "4"}}
"""By default Docker keeps all of a container's output, until the disk is full."""

REDIS_IMAGE = "redis:8.2"
REDIS_PING = ("redis-cli", "ping")


def redis_command(service: Service) -> tuple[str, ...]:
    """Returns the command of a Redis server with an append-only file, which refuses writes beyond its memory."""
    bound = ("--maxmemory", f"{service.max_memory}", "--maxmemory-policy", "noeviction")
    return ("redis-server", "--appendonly", "yes", *bound)


def is_ready(place: str) -> tuple[str, ...]:
    """Returns a command that exits with 0 when the service behind a status file or a URL is ready.

    The container ends with the writer of its status file. grep takes 1 ms of a processor, a Python 120 ms.
    """
    if place.startswith("/"):
        return ("grep", "-q", READY_MARK, place)
    return (*PYTHON_COMMAND, "-m", "launcher.is_ready", place)


def is_alive(status_file: str, silent_seconds: int) -> tuple[str, ...]:
    """Returns a command that exits with 0 while a service starts, or its status file is younger than `silent_seconds`.

    A ready service touches its status file every second while its event loop runs. A start has a bound of its own.
    """
    fresh = f"find {status_file} -newermt '-{silent_seconds} seconds'"
    return ("sh", "-c", f"! grep -q '{READY_MARK}' {status_file} || [ -n \"$({fresh})\" ]")
