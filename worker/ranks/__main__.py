"""Runs a rank other than rank 0 of a worker: `python -m worker.ranks DESCRIPTOR`. Only rank 0 starts it."""

import signal
import socket
import sys

import torch

from contracts.errors import BatonError
from contracts.kinds import LogFormat
from infra.process.log_lines import log_to_stderr
from worker.ranks.following import follow
from worker.ranks.orders import LoadShard, received


def main(stream: socket.socket, form: LogFormat) -> int:
    """Follows rank 0 until it closes the stream."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # rank 0 decides
    orders = received(stream)
    begin, _ = next(orders)
    assert isinstance(begin, LoadShard)
    log_to_stderr("warning", form, "worker", f"rank {begin.shard.rank}")
    torch.set_num_threads(begin.threads)
    follow(begin, orders, stream)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(socket.socket(fileno=int(sys.argv[1])), "json" if sys.argv[2] == "json" else "text"))
    except BatonError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
