"""Joins the ranks of a worker: over memory that they share, or by `torch.distributed`."""

from engine.parallel.distributed import DistributedCollective, MeetingFile
from engine.parallel.shard import Shard
from engine.parallel.shared_memory import RankWires, SharedMemoryCollective


def join(shard: Shard, way: RankWires | MeetingFile) -> SharedMemoryCollective | DistributedCollective:
    """Raises `RankError` if another rank does not come."""
    return DistributedCollective(shard, way) if isinstance(way, MeetingFile) else SharedMemoryCollective(shard, way)
