"""The slots of the host tier: which are free, and which evicted block's KV the others hold."""

from collections import OrderedDict
from collections.abc import Iterable

from engine.blocks.prefix_cache import Node


class HostSlots:
    """The slots of one pool; blocks in them leave in the order of last use, except blocks that are held."""

    def __init__(self, count: int) -> None:
        """All `count` slots are free at first."""
        self._count = count
        self._free = list(range(count))
        self._nodes: OrderedDict[Node, None] = OrderedDict()  # least recently used first, without held nodes

    @property
    def is_full(self) -> bool:
        return not self._free

    def oldest(self) -> Node | None:
        """Returns the least recently used block that is not held; None if there is none."""
        return next(iter(self._nodes), None)

    def put(self, node: Node) -> int:
        """Gives a block a slot, and returns it; one must be free."""
        node.slot = self._free.pop()
        self._nodes[node] = None
        return node.slot

    def leave(self, node: Node) -> None:
        """Frees the slot of a block that has one."""
        if node.slot is not None:
            self._free.append(node.slot)
            node.slot = None
            self._nodes.pop(node, None)

    def hold(self, node: Node) -> None:
        """Lets a block keep its slot, whatever is evicted, until `keep` or `leave`."""
        del self._nodes[node]

    def keep(self, node: Node) -> None:
        """Ends `hold`; the block is now the most recently used."""
        self._nodes[node] = None

    def check_invariants(self, nodes: Iterable[Node]) -> None:
        """Raises AssertionError unless exactly `nodes` have a slot, each its own, and the other slots are free."""
        used = list(nodes)
        assert self._nodes.keys() == {*used}, "another block in a slot, or one that is still held"
        slots = [node.slot for node in used if node.slot is not None]
        assert sorted(slots + self._free) == list(range(self._count)), "a slot is lost or used twice"
