"""Runs the commands that load Ray: `up --on ray`, `status`, `down`; see `launcher/ray_process.py`."""

import sys
from collections.abc import Sequence

from launcher.on_ray.commands import down, status
from launcher.on_ray.up import up

COMMANDS = {"up": up, "status": status, "down": down}


def main(arguments: Sequence[str]) -> int:
    return COMMANDS[arguments[0]](arguments[1:])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
