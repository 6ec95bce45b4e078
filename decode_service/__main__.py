"""Starts a decode worker: `python -m decode_service`. Its policy is `worker.roles.decode`."""

import sys
from functools import partial

from infra.cli import parse_or_exit
from infra.config.worker import WorkerConfig
from kvtransfer.decode_transfer import DecodeTransfer
from worker.role import Role, WorkerParts
from worker.roles.decode import DecodePolicy
from worker.start import serve


def role(parts: WorkerParts) -> Role:
    """Makes a decode worker's policy and transfer."""
    life = parts.life
    return Role(
        policy=DecodePolicy(parts.of_policy()),
        make_transfer=partial(DecodeTransfer, life.config.transfer, life.epoch, parts.spec, parts.memory),
        layer_written=None,
    )


if __name__ == "__main__":
    sys.exit(serve("decode", parse_or_exit(WorkerConfig, "decode_service"), role))
