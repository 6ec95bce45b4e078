"""The prefix cache: trees of KV blocks, found by key with one lookup per block and compared by token ids.

There is one tree for each root (a tenant), and a path from the root is a text. Each node's KV is in a block of the pool
or in a slot of the host tier. Full blocks are found by their keys. If no child matches completely, the child that
shares the most tokens is next to the searched text in the children's order, so it is found by bisection.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from contracts.kv.block_hash import TOKEN_BYTES, BlockKeys
from engine.blocks.key_changes import KeyChanges

by_tokens = attrgetter("tokens")


class Node:
    """One full block of text with KV on this worker. A root stands for a tenant and has no text."""

    __slots__ = ("block", "children", "key", "parent", "since", "slot", "step", "tokens")

    def __init__(self, key: bytes, tokens: bytes, parent: "Node | None") -> None:
        self.key = key
        self.tokens = tokens  # as `contracts.kv.block_hash.pack` packs them
        self.parent = parent
        self.children: list[Node] = []  # in order of their tokens
        self.block: int | None = None  # of the pool, with its KV; None: the KV is in a slot
        self.slot: int | None = None  # of the host tier
        self.step = 0  # the planned step that computes its KV; never before its parent's
        self.since = 0  # oldest step from which its KV was computed


class PrefixCache:
    """The trees of one KV group; `engine.blocks.pool` manages references and eviction."""

    def __init__(self, changes: KeyChanges | None = None) -> None:
        self._changes = changes
        self._roots: dict[bytes, Node] = {}
        self._nodes: dict[bytes, Node] = {}

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    def find(self, key: bytes) -> Node | None:
        """Returns the node with this key; the caller must compare its tokens."""
        return self._nodes.get(key)

    def walk(self, keys: BlockKeys, count: int) -> list[Node]:
        """Returns the leading nodes of the first `count` blocks."""
        found: list[Node] = []
        parent = self._roots.get(keys.root)
        for key, tokens in zip(keys.keys[:count], keys.packed, strict=False):
            node = self._nodes.get(key)
            if node is None or node.parent is not parent or node.tokens != tokens:
                break
            found.append(node)
            parent = node
        return found

    def nearest(self, root: bytes, parent: Node | None, rest: bytes, step: int) -> tuple[Node | None, int]:
        """Finds the child of `parent` (None: of the root) that shares the most leading tokens with packed `rest`.

        Only children whose KV was computed before `step` count. Returns the child and the number of shared tokens.
        """
        parent = parent or self._roots.get(root)
        if parent is None or not rest:
            return None, 0
        place = bisect_left(parent.children, rest, key=by_tokens)
        best: tuple[Node | None, int] = None, 0
        for node in parent.children[max(0, place - 1) : place + 1]:
            count = _common_tokens(node.tokens, rest)
            if count > best[1] and node.step < step:
                best = node, count
        return best

    def root(self, key: bytes) -> Node:
        """Returns the root of a tenant's texts; it is kept as long as it has children."""
        return self._roots.get(key) or Node(key, b"", None)

    def insert(self, parent: Node, key: bytes, tokens: bytes) -> Node:
        """Makes a node for a full block behind `parent`; its key must be new."""
        assert key not in self._nodes
        if parent.parent is None:
            self._roots[parent.key] = parent
        node = self._nodes[key] = Node(key, tokens, parent)
        if self._changes is not None:
            self._changes.kept(key)
        insort(parent.children, node, key=by_tokens)
        return node

    def remove(self, node: Node) -> list[Node]:
        """Removes a node and its descendants, and returns them."""
        parent = node.parent
        assert parent is not None, "a root goes with its last child"
        place = bisect_left(parent.children, node.tokens, key=by_tokens)  # siblings have different tokens
        assert parent.children[place] is node
        del parent.children[place]
        if parent.parent is None and not parent.children:
            del self._roots[parent.key]
        removed = [node]
        for each in removed:  # grows while it is walked
            del self._nodes[each.key]
            if self._changes is not None:
                self._changes.lost(each.key)
            removed += each.children
        return removed

    def check_invariants(self) -> None:
        """Raises AssertionError unless the trees are trees, in order, and their nodes are the index."""
        reached = []
        for key, root in self._roots.items():
            assert root.parent is None and root.key == key and root.children, "a root without children"
            reached += root.children
        for node in reached:
            assert node.parent is not None and self._nodes[node.key] is node
            assert [each.tokens for each in node.children] == sorted(each.tokens for each in node.children)
            assert all(child.parent is node for child in node.children)
            reached += node.children
        assert len(reached) == len(self._nodes), "a node that cannot be reached"


def _common_tokens(first: bytes, second: bytes) -> int:
    length = min(len(first), len(second))
    if first[:length] == second[:length]:
        return length // TOKEN_BYTES
    return next(at for at in range(length) if first[at] != second[at]) // TOKEN_BYTES
