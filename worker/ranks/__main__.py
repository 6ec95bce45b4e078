"""Runs a rank other than rank 0 of a worker: `python -m worker.ranks DESCRIPTOR`. Only rank 0 starts it."""

import signal
import socket
import sys

import torch

from contracts.errors import BatonError
from engine.model.formats.registry import open_checkpoint
from engine.parallel.rank_group import RankGroup
from engine.parallel.shared_memory import RankWires, SharedMemoryCollective
from engine.start.load_model import load_model
from infra.process.log_lines import log_to_stderr
from worker.ranks.following import RankExecutor
from worker.ranks.orders import LOADED, Launch, LoadShard, MakePool, Move, received


def main(stream: socket.socket) -> int:
    """Follows rank 0 until it closes the stream."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # rank 0 decides
    orders = received(stream)
    begin, _ = next(orders)
    assert isinstance(begin, LoadShard)
    log_to_stderr("warning", f"%(asctime)s rank {begin.shard.rank} %(levelname)s %(message)s")
    torch.set_num_threads(begin.threads)
    collective = SharedMemoryCollective(begin.shard, RankWires(begin.memory, begin.sockets))
    loaded = load_model(begin.config, lambda stage, percent: None, open_checkpoint, RankGroup(begin.shard, collective))
    stream.sendall(LOADED)
    executor: RankExecutor | None = None
    for order, descriptors in orders:
        match order:
            case MakePool(counts):
                executor = RankExecutor(loaded.with_pool(counts, descriptors=descriptors))
            case Move(moves):
                assert executor is not None
                executor.move(moves)
            case Launch(plan):
                assert executor is not None
                executor.follow(plan)
            case LoadShard():
                raise AssertionError("a rank begins once")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(socket.socket(fileno=int(sys.argv[1]))))
    except BatonError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
