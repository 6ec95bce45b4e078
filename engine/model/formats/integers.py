"""Makes int4 and int8 weights of unsigned codes with zero points: w[o, i] = scale (code - zero), by groups."""

import torch
from torch import Tensor

from contracts.errors import ModelError
from engine.model.formats.fields import WHOLE_ROW_GROUP
from engine.model.formats.format import StoredTensors
from engine.model.quantized import Form, Quantized

FORM_BY_BITS: dict[int, Form] = {4: "int4", 8: "int8"}
"""The form of codes of so many bits."""


def unpacked(words: Tensor, bits: int) -> Tensor:
    """Returns the codes, uint8 `[..., words x 32 / bits]`, of 32-bit words `[..., words]`, lowest bits first.

    They have 4 or 8 `bits`. Two codes 3, 1 of 4 bits, and then zeros, are the word 0x13.
    """
    found = words.contiguous().view(torch.uint8)
    return found if bits == 8 else torch.stack((found & 15, found >> 4), -1).flatten(-2)


def integers(codes: Tensor, zeros: Tensor, scales: Tensor, group: int, bits: int, order: Tensor | None) -> Quantized:
    """Makes a weight of codes uint8 `[out, in]`, whose zeros are integers `[out, groups]` and scales fp32.

    A scale with the digits of fp16 or bf16 loses none: a product with 8 bits fits into fp32's 24.
    """
    if bits == 4:
        return Quantized("int4", codes, scales, group, offsets=-zeros.float() * scales, order=order)
    values, zeros = (codes ^ 128).view(torch.int8), zeros.float() - 128
    return Quantized("int8", values, scales, group, offsets=-zeros * scales if zeros.any() else None, order=order)


def group_in(stored: StoredTensors, model: str, name: str, axis: int, group: int, inputs: int) -> int:
    """Returns how many inputs share a scale of the tensor `name`, whose `axis` counts groups.

    Raises `ModelError` where there are more or fewer groups than `group` makes of the inputs.
    """
    size = inputs if group == WHOLE_ROW_GROUP else min(group, inputs)
    shape, groups = stored.shape(name), -(-inputs // size)
    if len(shape) == 2 and shape[axis] != groups:
        made = f"the config's group_size {group} makes {groups} of {inputs} inputs"
        raise ModelError(f"{model}: {name} has shape {list(shape)}, hence {shape[axis]} groups, and {made}")
    return size


def order_in(stored: StoredTensors, model: str, name: str, group: int, inputs: int) -> Tensor | None:
    """Returns the order int64 `[in]` that brings inputs of one group together, of each one's group in `name`, int32.

    None: they are so already, or all are in group 0, or -1, as what has no order is written by some. Raises
    `ModelError` where a group would have another number of inputs than `group`.
    """
    found = stored.packed(name, (inputs,), "I32").long()
    expected = torch.arange(inputs) // group
    if torch.equal(found, expected) or found.amax() <= 0:
        return None
    order = found.argsort(stable=True)
    if not torch.equal(found[order], expected):
        raise ModelError(f"{model}: {name} does not have {group} inputs in every group")
    return order


def refuse_indivisible(model: str, name: str, what: str, count: int, by: int) -> None:
    """Raises `ModelError` for a layer whose inputs or outputs do not fill what they are packed in."""
    if count % by:
        raise ModelError(f"{model}: {name} has {count} {what}, which cannot be divided by {by}")
