"""Says where a service finds things in the image that the Dockerfile builds, whoever runs its containers."""

from contracts.version import BATON_VERSION
from launcher.deployment import Kept, Service

IMAGE = f"baton:{BATON_VERSION}"
APP = "/app"
DEMO_WEIGHTS = f"{APP}/demo_model/weights"
PYTHON = ("python",)  # in `APP`, which its PYTHONPATH names
USER = 1000
HOME = "/home/baton"
MODELS = "/models"  # where models in directories are mounted
RUN = "/run/baton"
STATUS_FILE = f"{RUN}/status"

KEPT: dict[Kept, str] = {
    "redis": "/data",
    "models": f"{HOME}/.cache/huggingface",
    "cache": f"{HOME}/.cache/baton",  # compiled operators, and what is unpacked of GGUF files
}
"""The directories of what services keep."""

REDIS_IMAGE = "redis:8.2"
REDIS_PING = ("redis-cli", "ping")


def redis_command(service: Service) -> tuple[str, ...]:
    """Returns the command of a Redis server that keeps an append-only file, and refuses what is beyond its memory."""
    bound = ("--maxmemory", f"{service.max_memory}", "--maxmemory-policy", "noeviction")
    return ("redis-server", "--appendonly", "yes", *bound)


def is_ready(place: str) -> tuple[str, ...]:
    """Returns the command that tells whether the service behind a status file or a URL is ready."""
    return (*PYTHON, "-m", "launcher.is_ready", place)


def is_alive(status_file: str, silent_seconds: int) -> tuple[str, ...]:
    """Returns the command that tells whether the service behind a status file has lately given a sign of life."""
    return (*PYTHON, "-m", "launcher.is_alive", status_file, str(silent_seconds))
