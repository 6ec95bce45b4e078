"""Writes quantized checkpoints as the libraries do whose own writers need a GPU, and twins with the numbers they mean.

Weights are rounded to nearest: what a format's method adds is better codes, which no reader sees.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

LINEAR = re.compile(r".*(_proj|_proj_with_mqa|experts\.\d+\.w\d)$")
"""Names of the layers that such libraries quantize; heads, embeddings and routers they leave out."""
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
"""The magnitudes of fp4 (e2m1); the fourth bit is the sign."""

Written = tuple[dict[str, Tensor], Tensor]
"""A layer's tensors by the ends of their names, and the weight fp32 `[out, in]` that they mean."""


def rewrite(plain: Path, directory: Path, config: dict[str, Any], write: Callable[[str, Tensor], Written]) -> Path:
    """Makes `directory` of the model in `plain`, its linear layers as `write` has them.

    `plain` becomes the twin: it has the numbers that these mean.
    """
    quantized: dict[str, Tensor] = {}
    numbers: dict[str, Tensor] = {}
    for name, tensor in load_file(plain / "model.safetensors").items():
        layer = name.removesuffix(".weight")
        if name == layer or not LINEAR.match(layer):
            quantized[name] = numbers[name] = tensor
            continue
        tensors, numbers[name] = write(layer, tensor.float())
        quantized |= {f"{layer}.{end}": each.contiguous() for end, each in tensors.items()}
    directory.mkdir()
    save_file(quantized, directory / "model.safetensors", {"format": "pt"})
    save_file(numbers, plain / "model.safetensors", {"format": "pt"})
    copy_beside(plain, directory)
    raw = json.loads((plain / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(raw | {"quantization_config": config}))
    return directory


def copy_beside(plain: Path, directory: Path) -> None:
    """Copies what a model's directory has beside weights and config."""
    for file in ("generation_config.json", "tokenizer.json"):
        if (plain / file).is_file():
            (directory / file).write_bytes((plain / file).read_bytes())


def packed(codes: Tensor, bits: int) -> Tensor:
    """Packs codes `[rows, n]` into int32 words `[rows, n x bits / 32]`, the first in the lowest bits."""
    in_word = 32 // bits
    words = torch.zeros(len(codes), codes.shape[1] // in_word, dtype=torch.int64)
    for place in range(in_word):
        words |= codes[:, place::in_word].long() << bits * place
    return words.to(torch.int32)


def rounded(weight: Tensor, bits: int, groups: Tensor, *, symmetric: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Returns codes `[out, in]`, zeros and scales `[out, groups]`, where `groups` int64 `[in]` has each input's group.

    Scales have fp16's digits.
    """
    highest, count = 2**bits - 1, int(groups.max()) + 1
    own = [weight[:, groups == group] for group in range(count)]
    least = torch.stack([each.amin(1).clamp(max=0) for each in own], 1)
    most = torch.stack([each.amax(1).clamp(min=0) for each in own], 1)
    if symmetric:
        most = torch.maximum(most, -least)
        least = -most
    scales = ((most - least) / highest).half().float()
    zeros = torch.full_like(scales, 2 ** (bits - 1)) if symmetric else (-least / scales).round().clamp(0, highest)
    codes = (weight / scales[:, groups] + zeros[:, groups]).round().clamp(0, highest)
    return codes, zeros, scales


def gptq(
    weight: Tensor, bits: int, group: int, *, version: int, symmetric: bool = False, desc_act: bool = False
) -> Written:
    """Writes a layer as `TorchQuantLinear.pack` of GPTQModel and `QuantLinear.pack` of AutoGPTQ do.

    With `desc_act` its inputs were quantized in a random order. Version 1 subtracts one of the packed zero points, by
    whole words: `convert_gptq_v2_to_v1_format_module` in gptqmodel/utils/model.py.
    """
    inputs = weight.shape[1]
    size = inputs if group == -1 else group
    groups = torch.arange(inputs) // size
    if desc_act:
        groups = groups[torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))]
    codes, zeros, scales = rounded(weight, bits, groups, symmetric=symmetric)
    words = packed(zeros.t(), bits)
    if version == 1:
        words -= sum(1 << place for place in range(0, 32, bits))
    tensors = {
        "qweight": packed(codes, bits).t(),
        "qzeros": words,
        "scales": scales.t().half(),
        "g_idx": groups.int(),
    }
    return tensors, scales[:, groups] * (codes - zeros[:, groups])


def awq(weight: Tensor, group: int) -> Written:
    """Writes a layer as `WQLinear_GEMM.from_linear` of AutoAWQ does (awq/modules/linear/gemm.py)."""
    groups = torch.arange(weight.shape[1]) // group
    codes, zeros, scales = rounded(weight, 4, groups)

    def interleaved(numbers: Tensor) -> Tensor:
        return packed(numbers.unflatten(1, (-1, 8))[:, :, list(AWQ_ORDER)].flatten(1), 4)

    tensors = {"qweight": interleaved(codes.t()), "qzeros": interleaved(zeros.t()), "scales": scales.t().half()}
    return tensors, scales[:, groups] * (codes - zeros[:, groups])


def fp8(weight: Tensor, block: tuple[int, int] | None, name: str = "weight_scale_inv") -> Written:
    """Writes a layer in e4m3 as `weight_dequant` of DeepSeek-V3 (inference/kernel.py) reads it.

    A scale is for a block, or for the whole weight.
    """
    rows, columns = block or tuple(weight.shape)
    whole = [part.split(columns, 1) for part in weight.split(rows)]
    scales = torch.stack([torch.stack([part.abs().max() / 448 for part in row]) for row in whole])
    spread = scales.repeat_interleave(rows, 0).repeat_interleave(columns, 1)[: len(weight), : weight.shape[1]]
    values = (weight / spread).to(torch.float8_e4m3fn)
    return {"weight": values, name: scales if block else scales.view(())}, values.float() * spread


def nvfp4(weight: Tensor) -> Written:
    """Writes a layer as `NVFP4QTensor.quantize` of Model Optimizer does (modelopt/torch/quantization/qtensor)."""
    groups = weight.unflatten(1, (-1, 16))
    coarse = weight.abs().max() / (448 * 6)
    fine = (groups.abs().amax(2) / 6 / coarse).to(torch.float8_e4m3fn)
    scales = fine.float() * coarse
    codes = (groups / scales[..., None]).abs().unsqueeze(-1).sub(FP4).abs().argmin(-1)
    means = FP4[codes] * groups.sign() * scales[..., None]
    codes = (codes + 8 * (groups < 0)).flatten(1).to(torch.uint8)
    packed = codes[:, ::2] | codes[:, 1::2] << 4
    tensors = {"weight": packed, "weight_scale": fine, "weight_scale_2": coarse, "input_scale": torch.tensor(0.25)}
    return tensors, means.flatten(1)


def mxfp8(weight: Tensor) -> Written:
    """Writes a layer as `MXFP8QTensor.quantize` of Model Optimizer does: powers of two that no number overflows."""
    groups = weight.unflatten(1, (-1, 32))
    powers = (groups.abs().amax(2) / 448).log2().ceil().clamp(-127, 127)
    values = (groups / powers.exp2()[..., None]).to(torch.float8_e4m3fn)
    tensors = {"weight": values.flatten(1), "weight_scale": (powers + 127).to(torch.uint8)}
    return tensors, (values.float() * powers.exp2()[..., None]).flatten(1)
