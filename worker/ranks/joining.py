"""Joins the ranks of a worker: over memory that they share, or by `torch.distributed`."""

from engine.parallel.distributed import DistributedBackend, DistributedCollective, MeetingFile
from engine.parallel.shard import Shard
from engine.parallel.shared_memory import RankWires, SharedMemoryCollective
from infra.config.engine import EngineConfig


def meeting(directory: str, backend: DistributedBackend, config: EngineConfig) -> MeetingFile:
    """Returns how ranks meet in an empty directory. Sums on a CPU are always deterministic."""
    return MeetingFile(f"{directory}/meeting", backend, config.deterministic or backend != "nccl")


def join(shard: Shard, link: RankWires | MeetingFile) -> SharedMemoryCollective | DistributedCollective:
    """Raises `RankError` if another rank does not come."""
    return DistributedCollective(shard, link) if isinstance(link, MeetingFile) else SharedMemoryCollective(shard, link)
