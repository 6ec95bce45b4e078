"""Starts a prefill worker: `python -m prefill_service`. Its policy is `worker.roles.prefill`."""

import sys
from functools import partial

from infra.cli import parse_or_exit
from infra.config.worker import WorkerConfig
from kvtransfer.prefill_transfer import PrefillTransfer
from worker.role import Role, WorkerParts
from worker.roles.prefill import PrefillPolicy
from worker.start import serve


def role(parts: WorkerParts) -> Role:
    """Makes a prefill worker's policy and transfer."""
    policy = PrefillPolicy(parts.of_policy())
    life = parts.life
    return Role(
        policy=policy,
        make_transfer=partial(PrefillTransfer, life.config.transfer, life.epoch, parts.spec, parts.memory),
        layer_written=policy.layer_written,
    )


if __name__ == "__main__":
    sys.exit(serve("prefill", parse_or_exit(WorkerConfig, "prefill_service"), role))
