"""`python -m prefill_service`: a prefill worker."""

import sys
from functools import partial

from core.cli import parse_or_exit
from core.config import WorkerConfig
from prefill_service.policy import PrefillPolicy
from prefill_service.transfer import PrefillTransfer
from worker.role import Parts, Role
from worker.start import serve


def role(parts: Parts) -> Role:
    """The parts that make a worker a prefill worker."""
    policy = PrefillPolicy(parts)
    transfer = partial(PrefillTransfer, parts.config.transfer, parts.epoch, parts.spec)
    return Role(
        policy=policy,
        make_transfer=lambda memory: partial(transfer, memory, parts.clock),
        layer_written=policy.layer_written,
    )


if __name__ == "__main__":
    sys.exit(serve("prefill", parse_or_exit(WorkerConfig, "prefill_service"), role))
