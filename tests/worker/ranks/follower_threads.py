"""Other ranks as threads of the test, which follow rank 0's orders over the sockets that processes have."""

import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from engine.parallel.distributed import MeetingFile
from engine.parallel.shared_memory import RankWires
from engine.start.load import LoadedEngine, load_engine
from infra.config.engine import EngineConfig
from worker.ranks.following import follow
from worker.ranks.leading import RankStreams
from worker.ranks.orders import LoadShard, received


class FollowerThreads(RankStreams):
    def __init__(self, config: EngineConfig, ranks: int) -> None:
        self._threads = ThreadPoolExecutor(ranks - 1)
        self._followers: list[Future[None]] = []
        super().__init__(config, ranks, threads=1)

    def begin(self, rank: int, stream: socket.socket, link: RankWires | MeetingFile) -> None:
        self._followers.append(self._threads.submit(self._follow, stream))

    @staticmethod
    def _follow(stream: socket.socket) -> None:
        with closing(stream):
            orders = received(stream)
            begin, _ = next(orders)
            assert isinstance(begin, LoadShard)
            follow(begin, orders, stream)

    def close(self) -> None:
        super().close()
        self._threads.shutdown()
        for each in self._followers:
            each.result()


class RankedEngine(NamedTuple):
    engine: LoadedEngine
    others: FollowerThreads


@contextmanager
def engine_of_ranks(directory: Path, ranks: int, **changes: object) -> Iterator[RankedEngine]:
    """Loads what rank 0 of a worker would, in fp32, beside the other ranks."""
    settings: dict[str, object] = dict(
        model=str(directory), device="cpu", dtype="fp32", kv_memory=4 << 20, max_model_len=256
    )
    config = EngineConfig(**{**settings, **changes})  # type: ignore[arg-type]
    followers = FollowerThreads(config, ranks)
    try:
        engine = load_engine(config, lambda stage, percent: None, group=followers.group, peers=followers)
        yield RankedEngine(engine, followers)
    finally:
        followers.close()
