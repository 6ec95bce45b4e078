"""Runs a rank other than rank 0 of a worker: `python -m worker.ranks DESCRIPTOR`. Only rank 0 starts it."""

import signal
import socket
import sys

import torch

from contracts.errors import BatonError
from infra.process.log_lines import log_to_stderr
from worker.ranks.following import follow
from worker.ranks.orders import LoadShard, received


def main(stream: socket.socket) -> int:
    """Follows rank 0 until it closes the stream."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # rank 0 decides
    orders = received(stream)
    begin, _ = next(orders)
    assert isinstance(begin, LoadShard)
    log_to_stderr("warning", f"%(asctime)s rank {begin.shard.rank} %(levelname)s %(message)s")
    torch.set_num_threads(begin.threads)
    follow(begin, orders, stream)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(socket.socket(fileno=int(sys.argv[1]))))
    except BatonError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
