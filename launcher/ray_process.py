"""Hands commands that need Ray over to a process that loads it: other commands neither load it nor need it installed.

Ray reads its environment variables when it is imported. Only the standard library: `./baton` asks this module before
anything is installed.
"""

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from launcher.words import BAD_INPUT_STATUS

RAY_EXTRA = "ray"  # of pyproject.toml
ON_RAY = ("ray",)
"""Commands for Ray only; `up`, `status` and `down` need Ray only with `--on ray`."""

RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_COLOR_PREFIX": "0",
    "RAY_DEDUP_LOGS": "0",  # keep equal lines of different services
}


def needs_ray(arguments: Sequence[str]) -> bool:
    """Returns whether a command of `./baton` loads Ray."""
    if not arguments or arguments[0] in ON_RAY:
        return bool(arguments)
    command, *words = arguments
    return (command == "up" and _on_ray(words)) or (command in ("status", "down") and asks_for_ray(words))


def asks_for_ray(words: Sequence[str]) -> bool:
    """Returns whether the options of `status` or `down` name a deployment on a Ray cluster."""
    return _on_ray(words) or any(word.startswith(("--ray-address", "--ray-namespace")) for word in words)


def _on_ray(words: Sequence[str]) -> bool:
    return any(list(words[i : i + 2]) == ["--on", "ray"] or words[i] == "--on=ray" for i in range(len(words)))


def hand_over(command: str, arguments: Sequence[str]) -> int:
    """Replaces this process by the command's; returns an exit status only if Ray is not installed."""
    if find_spec("ray") is None:
        print(
            f"error: ray is not installed in {sys.prefix}: it is in the extra {RAY_EXTRA!r} of pyproject.toml"
            f" (pip install -c constraints.txt ray)",
            file=sys.stderr,
        )
        return BAD_INPUT_STATUS
    environment = {**os.environ, **RAY_ENVIRONMENT}
    if command == "ray":
        os.execve(sys.executable, [sys.executable, "-m", "ray.scripts.scripts", *arguments], environment)
    os.execve(sys.executable, [sys.executable, "-P", "-m", "launcher.on_ray", command, *arguments], environment)
