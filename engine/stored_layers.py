"""Tells which layers' KV of a step is stored, so that a handoff can read it before the step ends.

With several ranks, a layer counts as stored when all ranks have stored it: they have met since then, in a sum, or by
`meet`.
"""

from engine.backends.base import OnLayer
from engine.kv.pool import KVPool
from engine.parallel.rank_group import RankGroup
from engine.plan import StepPlan


class StoredLayers:
    """The layers of one model's steps, in the order in which a forward pass stores them."""

    def __init__(self, pool: KVPool, group: RankGroup, on_layer: OnLayer | None) -> None:
        """`on_layer(plan, group, layer)` is called once for each layer of a step."""
        self._pool = pool
        self._group = group
        self._on_layer = on_layer
        self._groups = pool.spec.groups_of_layers()

    @property
    def count(self) -> int:
        return len(self._groups)

    def stored(self, plan: StepPlan, layer: int) -> None:
        """Records that this rank has stored a layer's KV."""
        if not self._group.is_divided:
            self._tell(plan, layer)
        elif layer:  # the layer before ended in a sum, so that all ranks have stored it
            self._tell(plan, layer - 1)

    def end(self, plan: StepPlan, last: int, *, is_summed: bool) -> None:
        """Records that the step has stored its `last` layer; without a sum behind that layer, the ranks meet first."""
        if self._group.is_divided:
            if not is_summed:
                self._group.collective.barrier()
            self._tell(plan, last)

    def _tell(self, plan: StepPlan, layer: int) -> None:
        self._pool.written(layer)
        if self._on_layer is not None:
            self._on_layer(plan, self._groups[layer], layer)
