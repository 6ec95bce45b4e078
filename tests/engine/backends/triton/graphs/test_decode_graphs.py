"""What a CUDA graph of an 8B model's step would hold: launches on the device alone, as many at every length.

Checked without a GPU: operators run on tensors without memory, and Triton's launches are noted, and do nothing.
"""

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from triton.runtime.interpreter import GridExecutor

from benchmarks.simulated.weightless import BLOCK_TOKENS, META, engine_of, weightless_engine
from contracts.kinds import Quantization
from engine.backends.triton.graphs.decode_graphs import DecodeGraphs
from engine.engine import Engine
from engine.executor import Executor
from engine.plan import StepPlan, Work
from tests.engine.drive import GREEDY
from tests.variants import VARIANTS

pytestmark = pytest.mark.interpreted
LAYERS, LONGEST = 32, 131072
FORBIDDEN_TAGS = {
    torch.Tag.data_dependent_output: "the host asks the device for a value",
    torch.Tag.dynamic_output_shape: "a shape that depends on data",
    torch.Tag.nondeterministic_seeded: "random numbers of PyTorch's generator",
}


class CaptureLint(TorchDispatchMode):
    """Notes launches, and what could not be part of a recorded step."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.launches: list[tuple[Any, ...]] = []
        self.wrong: list[str] = []
        self._made: dict[int, StorageWeakRef] = {}
        self._from_outside: dict[int, tuple[str, StorageWeakRef]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        given = _tensors((args, kwargs))
        if name in ("index", "index_put_"):  # by masks or by numbers
            masked = any(each.dtype == torch.bool for each in given)
            self.wrong += [f"{name}: a shape that depends on data"] if masked else []
        else:
            self.wrong += [f"{name}: {why}" for tag, why in FORBIDDEN_TAGS.items() if tag in func.tags]
        result = func(*args, **(kwargs or {}))
        found = _tensors(result)
        self.wrong += [f"{name}: a tensor on the host" for each in (*given, *found) if each.device != META]
        self._use(name, given)
        same = {each.untyped_storage()._cdata for each in given}
        new = [each.untyped_storage() for each in found if each.untyped_storage()._cdata not in same]
        self._made |= {each._cdata: StorageWeakRef(each) for each in new}
        if new or func._schema.is_mutable:  # else it is a view
            scalars = tuple(each for each in tree_leaves(args) if isinstance(each, int | float))
            self.launches.append((name, *(tuple(each.shape) for each in given), scalars))
        return result

    def triton(self, executor: Any, *args: Any, **kwargs: Any) -> None:
        """Notes a launch of a kernel."""
        name = executor.fn.__name__
        given = _tensors(args)
        self.wrong += [f"{name}: a tensor on the host" for each in given if each.device != META]
        self._use(name, given)
        scalars = tuple(each for each in tree_leaves((args, kwargs)) if isinstance(each, int | float))
        self.launches.append((name, executor.grid, *(tuple(each.shape) for each in given), scalars))

    def _use(self, name: str, given: Sequence[Tensor]) -> None:
        for each in given:
            storage = each.untyped_storage()
            if storage._cdata not in self._made:
                self._from_outside.setdefault(storage._cdata, (name, StorageWeakRef(storage)))

    def check(self) -> None:
        """Fails with all that is wrong, memory included that was made before the record and is gone behind it."""
        gc.collect()
        gone = [name for name, reference in self._from_outside.values() if reference.expired()]
        assert self.wrong + [f"{name}: memory that does not stay" for name in gone] == []


def _tensors(value: Any) -> list[Tensor]:
    return [each for each in tree_leaves(value) if isinstance(each, Tensor)]


@contextmanager
def linting() -> Iterator[CaptureLint]:
    lint = CaptureLint()
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr(GridExecutor, "__call__", lambda *args, **kwargs: lint.triton(*args, **kwargs))
        with lint:
            yield lint


@pytest.fixture(scope="module")
def engine() -> Engine:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GridExecutor, "__call__", lambda *args, **kwargs: None)
        patch.setattr("engine.backends.triton.attention.paged_attention.processors", lambda device: 132)
        return weightless_engine("llama-3.1-8b", 20000, 64, LONGEST, guesses=3, adapters=2, mixed_tokens=256)


def recorded(engine: Engine, rows: int, each: int = 1) -> CaptureLint:
    """What would be recorded for a batch of so many sequences, each with room for so many tokens."""
    assert isinstance(engine.decode_steps, DecodeGraphs)
    with linting() as lint:
        engine.decode_steps._step(rows, per_sequence=each)
    return lint


@pytest.mark.parametrize(("rows", "each"), [(1, 1), (8, 1), (40, 1), (64, 1), (1, 4), (64, 4)])
def test_a_decode_step_can_be_recorded(rows: int, each: int, engine: Engine) -> None:
    recorded(engine, rows, each).check()


def test_a_step_that_verifies_trees_can_be_recorded(tmp_path: Path, looked_at_nowhere: None) -> None:
    config = VARIANTS["llama"]()
    config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].__name__]
    config.save_pretrained(tmp_path)
    engine = engine_of(tmp_path, 100, 8, 256, guesses=15, trees=True)
    names = []
    for each in (8, 16):
        lint = recorded(engine, 8, each)
        lint.check()
        names.append([name for name, *_ in lint.launches])
    assert names[0] == names[1]


def test_a_layer_is_six_kernels_and_four_products(engine: Engine) -> None:
    launches = recorded(engine, 64).launches
    kernels = Counter(name for name, *_ in launches if name.startswith("_"))
    a_layer = {"_rms_norm": 2, "_rope_and_store": 1, "_attend_part": 1, "_join_splits": 1, "_gate": 1}
    assert kernels == Counter({name: LAYERS * count for name, count in a_layer.items()}) + Counter(["_rms_norm"])
    others = Counter(name for name, *_ in launches if not name.startswith("_") and "empty" not in name)
    assert others.pop("linear") == 4 * LAYERS
    inputs = {"to": 1, "eq": 1, "clamp": 1, "index": 1, "where": 1, "arange": 1, "embedding": 1}
    assert others == Counter(inputs) + Counter(["index"]), "the last puts rows into the order of the works"


@pytest.mark.parametrize("adapted", [False, True], ids=["plain", "adapted"])
@pytest.mark.parametrize("rows", [16, 256])
def test_a_mixed_step_can_be_recorded(rows: int, adapted: bool, engine: Engine) -> None:
    """With adapters a product is two launches more, and rows are sorted twice: all, and those of the last layer."""
    assert isinstance(engine.decode_steps, DecodeGraphs) and engine.decode_steps._mixed is not None
    with linting() as lint:
        engine.decode_steps._mixed.step(rows, adapted)
    lint.check()
    kernels = Counter(name for name, *_ in lint.launches if name.startswith("_"))
    a_layer = {"_rms_norm": 2, "_rope_and_store": 1, "_attend": 1, "_attend_part": 1, "_join_splits": 1, "_gate": 1}
    a_layer |= {"_join": 1} if kernels["_join"] else {}  # of keys that are split for the few tiles of a small step
    a_layer |= {"_shrink": 4, "_expand": 4} if adapted else {}
    expected = Counter({name: LAYERS * count for name, count in a_layer.items()}) + Counter(["_rms_norm"])
    assert kernels == expected + Counter({"_sort": 2} if adapted else {})


def test_a_mixed_step_is_seven_kernels_and_four_products_a_layer(engine: Engine) -> None:
    """Attention's two kernels write to one place, and nothing is launched to join what they give."""
    executor = Executor(replace(engine, decode_steps=None))
    decodes = [Work(n, 2000, [7], ([1] * 126,), GREEDY) for n in range(9)]
    with linting() as lint:
        executor.launch(StepPlan(0, [*decodes, Work(9, 0, [7] * 40, ([1] * 3,))]))
    launched = Counter(name for name, *_ in lint.launches if "empty" not in name)
    a_layer = {"_rms_norm": 2, "_rope_and_store": 1, "_attend_part": 1, "_join_splits": 1, "_attend": 1}
    for name, count in (a_layer | {"_gate": 1, "linear": 4}).items():
        assert launched.pop(name) - count * LAYERS in (0, 1), f"{name}: the norm and the head behind the last layer"
    assert launched["cat"] == 0 and launched.total() < LAYERS, launched


def test_a_record_is_the_same_for_every_batch_but_for_its_rows(engine: Engine) -> None:
    names = [[name for name, *_ in recorded(engine, rows).launches] for rows in (1, 8, 64)]
    assert names[0] == names[1] == names[2]


def test_what_is_recorded_does_not_depend_on_the_inputs(engine: Engine) -> None:
    """One long text among short ones, or none: the same launches on the same numbers."""
    assert isinstance(engine.decode_steps, DecodeGraphs)
    records = []
    for longest in (20, 100_000):
        starts = [17] * 39 + [longest]
        works = [Work(n, at, [7], ([1] * (at // BLOCK_TOKENS + 1),), GREEDY) for n, at in enumerate(starts)]
        with linting():
            engine.decode_steps._inputs[1].fill(works, 40, None)
        records.append(recorded(engine, 40).launches)
    assert records[0] == records[1]


@pytest.fixture
def looked_at_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights without memory have no values by which to choose how they are packed."""
    monkeypatch.setattr(GridExecutor, "__call__", lambda *args, **kwargs: None)
    for module in ("engine.backends.triton.attention.paged_attention", "kernels.quantized.product"):
        monkeypatch.setattr(f"{module}.processors", lambda device: 132)
    monkeypatch.setattr("kernels.quantized.packed.narrowed", lambda numbers: numbers.half())
    monkeypatch.setattr("kernels.quantized.packed.shared_in_blocks", lambda scales: False)
    monkeypatch.setattr("kernels.quantized.packed._offsets", lambda kind, scales, offsets: None)


MIXTURE = {"_route": 1, "_sort": 1, "_multiply": 2, "_sum_used": 1, "mm": 1}
HEADS = {"_rms_norm": 2, "_rope_and_store": 1, "_attend_part": 1}
LATENT = {"_rms_norm": 2, "_store_latents": 1, "_rotate_queries": 1, "_attend_part": 1, "bmm": 2}
A_LAYER: dict[tuple[str, Quantization], dict[str, int]] = {
    ("qwen3-moe", "none"): HEADS | MIXTURE | {"linear": 2},
    ("qwen3-moe", "int4"): HEADS | MIXTURE | {"_multiply": 4, "_join": 1},
    ("deepseek-v2-lite", "none"): LATENT | MIXTURE | {"_gate": 1, "linear": 4, "add": 1},
    ("llama", "int4"): HEADS | {"_gate": 1, "_multiply": 4, "_join": 3},
}
"""What a layer launches beside allocations. A router is a product of 16-bit parts (`mm`), and experts that all tokens
share are linear layers; sums of 1,024 inputs are cut into parts, and those of attention's 128 outputs are not."""


@pytest.mark.parametrize(("variant", "quantization"), A_LAYER, ids=str)
def test_experts_latent_attention_and_quantized_weights_can_be_recorded(
    variant: str, quantization: Quantization, tmp_path: Path, looked_at_nowhere: None
) -> None:
    config = VARIANTS[variant]()
    config.update({"num_hidden_layers": 2, "first_k_dense_replace": 0, "hidden_size": 1024, "intermediate_size": 1024})
    config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].__name__]
    config.save_pretrained(tmp_path)
    engine = engine_of(tmp_path, 100, 8, 256, quantization=quantization)
    lint = recorded(engine, 8)
    lint.check()
    found = Counter(name for name, *_ in lint.launches)
    for name, count in A_LAYER[variant, quantization].items():
        assert found[name] - 2 * count in (0, 1), f"{name}: {found[name]}, and one norm is behind the last layer"
    unknown = {name for name in found if name.startswith("_")} - A_LAYER[variant, quantization].keys()
    assert not unknown, f"{unknown}"


def test_rows_in_bytes_cost_one_launch_a_layer(tmp_path: Path, looked_at_nowhere: None) -> None:
    """That of what attention gives: norms and gates quantize what they give."""
    config = VARIANTS["llama"]()
    config.update({"num_hidden_layers": 2})
    config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].__name__]
    config.save_pretrained(tmp_path)
    engine = engine_of(tmp_path, 100, 136, 256, quantization="int8", activations="8bit")
    lint = recorded(engine, 136)
    lint.check()
    found = Counter(name for name, *_ in lint.launches if name.startswith("_"))
    a_layer = {
        "_norm_rows": 2,
        "_rope_and_store": 1,
        "_attend_part": 1,
        "_quantize": 1,
        "_gate_rows": 1,
        "_multiply": 4,
    }
    assert found == Counter({name: 2 * count for name, count in a_layer.items()}) + Counter(["_rms_norm"])


WRONG: dict[str, tuple[Callable[[Tensor], object], str]] = {
    "a value": (lambda here: here.sum().item(), "the host asks the device for a value"),
    "a copy": (lambda here: torch.zeros(4).to(META) + here, "a tensor on the host"),
    "a mask": (lambda here: here[here > 0], "a shape that depends on data"),
    "chance": (lambda here: torch.randn_like(here), "random numbers"),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_lint_finds_what_a_graph_cannot_hold(name: str) -> None:
    step, why = WRONG[name]
    here = torch.zeros(4, device=META)
    with linting() as lint, suppress(RuntimeError, NotImplementedError):  # without memory there is no value
        step(here)
    with pytest.raises(AssertionError, match=why):
        lint.check()


def test_the_lint_finds_memory_that_does_not_stay() -> None:
    outside = [torch.zeros(4, device=META)]
    with linting() as lint:
        outside[0] + 1
    lint.check()
    outside.clear()
    with pytest.raises(AssertionError, match="add: memory that does not stay"):
        lint.check()
