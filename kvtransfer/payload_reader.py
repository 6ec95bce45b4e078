"""Reads a link's payloads from the pool, one ahead: a device copies the next payload while the host sends this one."""

from collections.abc import Callable, Sequence

from contracts.kinds import Codec
from kvtransfer.memory import KVMemory
from kvtransfer.protocol.payloads import Payload


class PayloadReader:
    """Reads at most one payload at a time."""

    def __init__(self, memory: KVMemory) -> None:
        self._memory = memory
        self._begun: tuple[int, Payload, Callable[[], list[memoryview]]] | None = None  # and its handoff

    def begin(self, handoff: int, payload: Payload, blocks: Sequence[int], codec: Codec) -> bool:
        """Begins to read a payload, unless that has begun; returns False if its blocks are still being computed."""
        if self._begun is not None and self._begun[:2] == (handoff, payload):
            return True
        if not self._memory.ready(payload.group, payload.layer, blocks):
            return False
        self._drop()
        self._begun = (handoff, payload, self._memory.begin_read(payload.group, payload.layer, blocks, codec))
        return True

    def finish(self) -> list[memoryview]:
        """Returns the views of the payload that is being read."""
        assert self._begun is not None
        _, _, views = self._begun
        self._begun = None
        return views()

    def closed(self, handoff: int) -> None:
        """Ends the read of a handoff that is over, before its blocks are reused."""
        if self._begun is not None and self._begun[0] == handoff:
            self._drop()

    def _drop(self) -> None:
        if self._begun is not None:
            self.finish()
