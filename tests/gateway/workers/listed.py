"""A directory of given workers, which a router chooses from."""

from collections.abc import Iterable

from gateway.workers.directory import WorkerDirectory
from gateway.workers.worker import Worker


def listed(workers: Iterable[Worker]) -> WorkerDirectory[Worker]:
    directory = WorkerDirectory[Worker]()
    for each in workers:
        directory.add(each)
    return directory
