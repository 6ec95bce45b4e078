"""Experts whose weights are quantized stay packed on the GPU's path, and give what their numbers give."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from msgspec import structs
from torch import Tensor

from contracts.kinds import Activations
from engine.backends.reference.linear import ReferenceLinears
from engine.backends.triton.linear_layers.linear import TritonLinears
from engine.backends.triton.linear_layers.packed_experts import Gathering
from engine.model.config import ExpertsMLP
from engine.model.families.expert_tensors import ExpertTensors
from engine.model.mxfp4 import unpacked
from engine.model.quantization import to_fp8, to_int4, to_int8
from engine.model.quantized import Quantized, Weight
from kernels.moe.expert_products import Expert
from kernels.moe.packed_products import PackedExpert
from kernels.tuning import Config
from launcher.devices.gpus import visible_gpus
from tests.engine.drive import run, start
from tests.engine.specializations import specializations
from tests.engine.test_golden import make_executor
from tests.reference import build_model, make_prompts
from tests.variants import VARIANTS

DEVICE = torch.device("cuda" if visible_gpus() else "cpu")
EXPERTS, HIDDEN, WIDTH = 3, 64, 64
RUN_INPUTS = 128
MLP = ExpertsMLP(experts=EXPERTS, used=2, intermediate=WIDTH, activation="clamped_swiglu", bias=True)


def mxfp4(weight: Tensor) -> Quantized:
    """Puts random codes in place of a weight's numbers, with scales of about an eighth."""
    outputs, inputs = weight.shape
    blocks = torch.randint(0, 256, (outputs, inputs // 32, 16), dtype=torch.uint8)
    return unpacked(blocks, torch.randint(122, 126, blocks.shape[:2], dtype=torch.uint8))


def exactly(weight: Tensor) -> Tensor:
    return weight


def in_fp32(weight: Tensor) -> Quantized:
    """Makes an int4 weight whose scales have more digits than 16 bits hold, and whose zeros are not at 8."""
    found = to_int4(weight)
    assert found.offsets is not None
    return replace(found, scales=found.scales * 1.0001, offsets=found.offsets * 0.9)


def with_zeros(weight: Tensor) -> Quantized:
    """Makes an int4 weight whose groups have codes of their own for 0."""
    found = to_int4(weight)
    return replace(found, offsets=found.scales * -torch.randint(16, found.scales.shape, device=found.scales.device))


Make = Callable[[Tensor], Weight]


def expert(gate: Make, up: Make, down: Make) -> ExpertTensors:
    def drawn(outputs: int, inputs: int) -> Tensor:
        values: Tensor = torch.randn(outputs, inputs) * inputs**-0.5
        return values

    biases = torch.randn(2 * WIDTH, device=DEVICE), torch.randn(HIDDEN, device=DEVICE)
    return ExpertTensors((gate(drawn(WIDTH, HIDDEN)), up(drawn(WIDTH, HIDDEN))), down(drawn(HIDDEN, WIDTH)), *biases)


LAYERS: dict[str, tuple[Sequence[tuple[Make, Make, Make]], tuple[type, type]]] = {
    "MXFP4": ([(mxfp4, mxfp4, mxfp4)] * EXPERTS, (PackedExpert, PackedExpert)),
    "int4": ([(to_int4, to_int4, to_int4)] * EXPERTS, (PackedExpert, PackedExpert)),
    "int8": ([(to_int8, to_int8, to_int8)] * EXPERTS, (PackedExpert, PackedExpert)),
    "fp8, and down left out": ([(to_fp8, to_fp8, exactly)] * EXPERTS, (PackedExpert, Expert)),
    "gate and up differ": ([(to_fp8, to_int8, to_int4)] * EXPERTS, (Expert, PackedExpert)),
    "longer scales, and offsets, in the last": (
        [(to_int4, to_int4, to_int4)] * 2 + [(in_fp32, in_fp32, in_fp32)],
        (PackedExpert, PackedExpert),
    ),
    **{
        f"int4, {words}": ([(make, make, make) for make in makes], (PackedExpert, PackedExpert))
        for words, makes in {
            "zeros in the second": (to_int4, with_zeros, to_int4),
            "zeros, then offsets": (with_zeros, in_fp32, to_int4),
            "offsets, then zeros": (in_fp32, to_int4, with_zeros),
        }.items()
    },
    "another kind in the last": (
        [(to_int4, to_int4, to_int4)] * 2 + [(to_int4, to_int4, mxfp4)],
        (PackedExpert, Expert),
    ),
    "numbers in the first": ([(exactly, exactly, exactly)] + [(to_int4, to_int4, to_int4)] * 2, (Expert, Expert)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_they_give_what_their_numbers_give(name: str) -> None:
    makes, kinds = LAYERS[name]
    tensors = [expert(*each) for each in makes]
    x = torch.randn(5, HIDDEN, device=DEVICE)
    chosen = torch.tensor([[0, 1], [2, 0], [1, 2], [2, 1], [0, 2]], dtype=torch.int32, device=DEVICE)
    shares = torch.rand(5, 2, device=DEVICE)
    ours = TritonLinears(DEVICE, torch.float32).experts(MLP, HIDDEN, iter(tensors))
    theirs = ReferenceLinears(DEVICE, torch.float32).experts(MLP, HIDDEN, iter(tensors))
    assert (type(ours._gate_up), type(ours._down)) == kinds
    torch.testing.assert_close(ours(x, chosen, shares), theirs(x, chosen, shares), rtol=1e-4, atol=1e-4)


def for_bytes(weight: Tensor) -> Quantized:
    """Makes an fp8 weight of a checkpoint that was made for fp8 products."""
    return replace(to_fp8(weight), meets_bytes=True)


FP16, FP32 = torch.float16, torch.float32


@pytest.mark.parametrize(
    ("activations", "dtype", "makes", "expected"),
    [
        ("auto", FP16, (for_bytes, for_bytes, to_fp8), (True, False)),
        ("auto", FP32, (for_bytes, for_bytes, for_bytes), (False, False)),
        ("8bit", FP32, (to_int8, to_int8, to_int4), (True, False)),
        ("16bit", FP16, (for_bytes, for_bytes, for_bytes), (False, False)),
    ],
)
def test_who_decides_about_activations(
    activations: Activations, dtype: torch.dtype, makes: tuple[Make, Make, Make], expected: tuple[bool, bool]
) -> None:
    """The same that decides for other layers, for each of the two products."""
    experts = TritonLinears(DEVICE, dtype, activations).experts(MLP, HIDDEN, [expert(*makes) for _ in range(EXPERTS)])
    forms = [isinstance(each, PackedExpert) and each.form is not None for each in (experts._gate_up, experts._down)]
    assert tuple(forms) == expected


def test_a_product_is_quantized_if_all_of_its_experts_were_made_for_it() -> None:
    tensors = [expert(for_bytes, to_fp8, for_bytes), expert(for_bytes, for_bytes, for_bytes)]
    experts = TritonLinears(DEVICE, FP16).experts(structs.replace(MLP, experts=2), HIDDEN, tensors)
    assert isinstance(experts._gate_up, PackedExpert) and isinstance(experts._down, PackedExpert)
    assert experts._gate_up.form is None and experts._down.form is not None


@pytest.mark.interpreted
def test_steps_launch_what_the_start_has_compiled() -> None:
    linears = TritonLinears(torch.device("cpu"), FP16)
    experts = linears.experts(MLP, HIDDEN, [expert(for_bytes, for_bytes, for_bytes) for _ in range(EXPERTS)])
    with specializations(run=False) as found:
        linears.warm_up()
        at_start = set(found)
        for tokens in (1, 40, 128, 129, 500):
            chosen = torch.zeros((tokens, 2), dtype=torch.int32)
            experts(torch.zeros((tokens, HIDDEN), dtype=FP16), chosen, chosen.float())
    assert sorted(found - at_start) == []
    assert any("row_products" in str(each) or "_quantize" in str(each) for each in found)


def test_blocks_are_known_if_all_experts_have_them() -> None:
    def blocked(weight: Tensor) -> Quantized:
        found = to_fp8(weight)
        return replace(found, scales=found.scales[:1].expand_as(found.scales).contiguous())

    for makes, known in (((blocked, blocked), True), ((blocked, to_fp8), False), ((to_fp8, blocked), False)):
        gathering = Gathering(2, (HIDDEN, WIDTH), False, DEVICE, FP32, "auto")
        for place, make in enumerate(makes):
            gathering.take(place, [make(torch.randn(HIDDEN, WIDTH))], None)
        product = gathering.product()
        assert isinstance(product, PackedExpert) and product.weight.by_block == known


def test_what_is_held_is_the_codes() -> None:
    """Counts a byte for two weights of runs of 128 inputs, of which these have half, and 16 bits for a scale of 32."""
    tensors = [expert(mxfp4, mxfp4, mxfp4) for _ in range(EXPERTS)]
    held = TritonLinears(DEVICE, torch.float32).experts(MLP, HIDDEN, iter(tensors)).held()
    numbers = 3 * EXPERTS * HIDDEN * WIDTH
    assert (
        sum(each.nbytes for each in held)
        == numbers // HIDDEN * RUN_INPUTS // 2 + numbers // 32 * 2 + EXPERTS * (2 * WIDTH + HIDDEN) * 4
    )


def test_tokens_equal_those_of_the_dequantized_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs gpt-oss in int4: prompts beside decodes, and recorded steps."""
    if DEVICE.type == "cpu":
        wide = {"TILE": 512, "RUNS": 4}  # the interpreter takes its time for each tile, whatever its size
        monkeypatch.setattr("kernels.quantized.product.FP32_CONFIG", Config(wide))
        monkeypatch.setattr("kernels.moe.packed_products.CANDIDATE_CONFIGS", [Config({**wide, "GROUP": 1})] * 3)
    config = VARIANTS["gpt-oss"]()
    config.num_hidden_layers, config.layer_types = 1, config.layer_types[:1]
    directory = build_model(tmp_path / "model", config)
    found = []
    for backend in ("torch", "triton"):
        settings: dict[str, object] = {f"{DEVICE.type}_backend": backend, "max_sequences": 2, "max_batch_tokens": 64}
        executor = make_executor(directory, device=DEVICE.type, quantization="int4", **settings)
        running = start(executor, make_prompts([2, 19], config.vocab_size), 3)
        found.append(run(executor, running, 3, chunk=16, ahead=True))
    assert found[0] == found[1]
