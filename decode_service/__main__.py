"""`python -m decode_service`: a decode worker."""

import sys
from functools import partial

from core.cli import parse_or_exit
from core.config import WorkerConfig
from decode_service.policy import DecodePolicy
from decode_service.transfer import DecodeTransfer
from worker.role import Parts, Role
from worker.start import serve


def role(parts: Parts) -> Role:
    """The parts that make a worker a decode worker."""
    return Role(
        policy=DecodePolicy(parts),
        make_transfer=lambda memory: partial(DecodeTransfer, parts.config, parts.epoch, parts.spec, memory),
        layer_written=None,
    )


if __name__ == "__main__":
    sys.exit(serve("decode", parse_or_exit(WorkerConfig, "decode_service"), role))
