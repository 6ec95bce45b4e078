"""Makes int4 and int8 weights from unsigned codes with zero points: w[o, i] = scale (code - zero), by groups."""

import torch
from torch import Tensor

from contracts.errors import ModelError
from engine.model.formats.fields import WHOLE_ROW_GROUP
from engine.model.formats.format import StoredTensors
from engine.model.quantized import Form, Quantized

FORM_BY_BITS: dict[int, Form] = {4: "int4", 8: "int8"}


def unpacked(words: Tensor, bits: int) -> Tensor:
    """Unpacks 32-bit words `[..., words]` to codes of 4 or 8 bits, uint8 `[..., words x 32 / bits]`, lowest bits first.

    The 4-bit codes 3, 1, then zeros, are the word 0x13.
    """
    found = words.contiguous().view(torch.uint8)
    return found if bits == 8 else torch.stack((found & 15, found >> 4), -1).flatten(-2)


def integers(codes: Tensor, zeros: Tensor, scales: Tensor, group: int, bits: int, order: Tensor | None) -> Quantized:
    """Makes a weight from codes uint8 `[out, in]`, integer zeros `[out, groups]` and fp32 scales.

    Offsets are exact for scales in fp16 or bf16: their digits times 8 bits fit into fp32's 24.
    """
    if bits == 4:
        return Quantized("int4", codes, scales, group, offsets=-zeros.float() * scales, order=order)
    values, zeros = (codes ^ 128).view(torch.int8), zeros.float() - 128
    return Quantized("int8", values, scales, group, offsets=-zeros * scales if zeros.any() else None, order=order)


def group_in(stored: StoredTensors, model: str, name: str, group: int, inputs: int) -> int:
    """Returns how many inputs share a scale of the tensor `name`, `[groups, out]`.

    Raises `ModelError` if the number of groups contradicts `group`.
    """
    size = inputs if group == WHOLE_ROW_GROUP else min(group, inputs)
    shape, groups = stored.shape(name), -(-inputs // size)
    if len(shape) == 2 and shape[0] != groups:
        made = f"the config's group_size {group} makes {groups} of {inputs} inputs"
        raise ModelError(f"{model}: {name} has shape {list(shape)}, hence {shape[0]} groups, and {made}")
    return size


def order_in(stored: StoredTensors, model: str, name: str, group: int, inputs: int) -> Tensor | None:
    """Returns the permutation int64 `[in]` that sorts inputs by group, from their groups in the tensor `name`, int32.

    None if they are sorted already, or all in group 0 or -1, which some writers use for *no order*. Raises `ModelError`
    if a group does not have `group` inputs.
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
    """Raises `ModelError` if a layer's inputs or outputs are no multiple of `by`."""
    if count % by:
        raise ModelError(f"{model}: {name} has {count} {what}, which cannot be divided by {by}")
