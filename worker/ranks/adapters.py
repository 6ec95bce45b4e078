"""Loads and frees adapters on all ranks of a worker: each holds its part of their matrices."""

from pathlib import Path

from contracts.errors import AdapterError
from worker.adapters import AdapterShelf
from worker.ranks.leading import RankStreams


class RankAdapters:
    """Implements `worker.adapters.AdapterShelf` over rank 0's own shelf and the other ranks'."""

    def __init__(self, own: AdapterShelf, ranks: RankStreams) -> None:
        self._own = own
        self._ranks = ranks
        self._held: set[str] = set()

    def load(self, directory: Path) -> str:
        """Loads an adapter on all ranks, or on none. A step that begins meanwhile waits. Raises `AdapterError`."""
        answers = self._ranks.load_adapter(directory)
        digests = {answer.digest for answer in answers}
        try:
            if problem := next((answer.problem for answer in answers if answer.problem), ""):
                raise AdapterError(problem)
            digest = self._own.load(directory)
            if digests != {digest}:
                raise AdapterError("its files changed while they were read")
        except AdapterError:
            for digest in digests - self._held - {""}:
                self._ranks.free_adapter(digest)
            raise
        self._held.add(digest)
        return digest

    def free(self, digest: str) -> None:
        self._held.discard(digest)
        self._ranks.free_adapter(digest)
        self._own.free(digest)
