"""The interface of backends, which provide the operators.

A backend is chosen once, when the model loads (`engine/backends/choice.py`), and named in the log.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from engine.backends.adjuster import Adjuster
from engine.backends.sampler import Sampler
from engine.backends.scorer import Scorer
from engine.kv.codec import BlockCodec
from engine.kv.mover import BlockMover
from engine.model.attention import Attention, Step
from engine.model.batch import Sampled
from engine.model.config import ModelConfig, TextModel
from engine.model.layers.layer import LayerWeights
from engine.model.layers.linear import Linear, Linears
from engine.model.model import Model
from engine.model.transformer import Layers
from engine.plan import StepPlan, Work
from infra.process.status import Progress

OnLayer = Callable[[StepPlan, int, int], None]
"""Called with a step's plan, a KV group and a layer when that layer's KV of the step is stored (on CUDA: enqueued)."""

OwnLinear = TypeVar("OwnLinear", bound=Linear)
"""The linear layers of one backend."""


class StepSizes(NamedTuple):
    """The largest steps that a backend prepares its own way to run."""

    sequences: int  # decodes in a step
    draft_tokens: int = 0  # of a sequence
    mixed_tokens: int = 0  # of a step with decodes and chunks of prompts; 0: no such steps
    in_flight: int = 0  # steps that the host launches before it waits for one; 0: the backend's `launch_depth`
    trees: bool = False  # draft tokens may form trees, not only chains


class DecodeSteps(Protocol):
    """A backend's own way to run steps of decodes, and perhaps steps of decodes beside chunks of prompts."""

    def serves(self, plan: StepPlan) -> bool:
        """Returns whether the plan can run this way."""
        ...

    def run(self, works: Sequence[Work], before: Sampled | None, adapters: Sequence[int] | None = None) -> Tensor:
        """Returns normed states `[rows, hidden]`, which the next run may overwrite; KV of all layers is stored.

        There is a row for each sampled work, and one for each of its draft tokens. The caller applies the head.

        `PENDING_TOKEN`s stand for the tokens that `before` sampled. `adapters` are the works' slots, if any work has an
        adapter.
        """
        ...


class Backend(ABC, Generic[OwnLinear, Step]):
    """Makes all operators for one device and number format.

    They only fit each other: a backend's layers take linear layers and attention steps of the same backend.
    """

    name: ClassVar[str]
    linears: Linears[OwnLinear]
    adjuster: Adjuster
    sampler: Sampler
    scorer: Scorer
    mover: BlockMover
    codec: BlockCodec

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device = device
        self.dtype = dtype

    @property
    def launch_depth(self) -> int:
        """Returns how many steps are launched before the first is collected.

        On a CPU a step has finished when `launch` returns; on CUDA the host prepares the next step meanwhile.
        """
        return 2 if self.device.type == "cuda" else 1

    @abstractmethod
    def layers(
        self, config: ModelConfig, layers: Sequence[LayerWeights[OwnLinear]], norm: Tensor | None, first: int = 0
    ) -> Layers[Step]:
        """Makes the layers from their weights, and from the final norm's, `[hidden]`; None: no norm.

        Their KV is in the pool's layers from number `first` on.
        """

    @abstractmethod
    def attention(self, config: TextModel, pool: list[Tensor]) -> Attention[Step]:
        """Makes the attention over a pool's layers, laid out as in `engine/model/kv_layout.py`."""

    def warm_up(self, config: TextModel, pool: list[Tensor]) -> None:
        """Compiles kernels that the first steps do not use, so that no request waits for them."""
        return

    def decode_steps(
        self,
        model: Model[Step],
        config: TextModel,
        pool: list[Tensor],
        sizes: StepSizes,
        progress: Progress,
    ) -> DecodeSteps | None:
        """Makes the runner of steps of these sizes; None if decodes run like other steps."""
        return None

    def layer_signal(self, written: OnLayer | None, divide: Callable[[], None]) -> OnLayer | None:
        """Returns the callback of a step after a layer's KV is stored and before it attends; None for no callback.

        It calls `written`, if any, and `divide`, which redistributes the host's cores when other workers become busy or
        idle; backends that do not compute on the host do not call `divide`.
        """

        def signal(plan: StepPlan, group: int, layer: int) -> None:
            if written is not None:
                written(plan, group, layer)
            divide()

        return signal
