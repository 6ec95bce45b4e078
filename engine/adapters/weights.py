"""Reads an adapter's matrices from safetensors and lays them out for the linear layers that they change."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from contracts.errors import AdapterError
from engine.adapters.peft_config import AdapterConfig, read_adapter_config
from engine.model.layers.adapted import AdapterTarget, Expansion, LowRank
from engine.model.spellings import LAYER_PREFIXES, inner, is_beside_text

WEIGHTS_FILE = "adapter_model.safetensors"
PEFT_PREFIX = "base_model.model."
LORA_A_SUFFIX, LORA_B_SUFFIX = ".lora_A.weight", ".lora_B.weight"
Tensors = Mapping[str, Tensor]


def read_adapter(
    directory: Path, targets: Sequence[AdapterTarget], max_rank: int, device: torch.device, dtype: torch.dtype
) -> tuple[str, list[LowRank | None]]:
    """Returns the digest of an adapter, and its matrices for each target. Raises `AdapterError`."""
    config, body = read_adapter_config(directory, max_rank)
    tensors = _tensors(directory)
    targets = _spelled(targets, tensors)
    _check_names(config, tensors, targets)
    digest = hashlib.sha256(body)
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    changes = [_change(config, tensors, target, device, dtype) for target in targets]
    return digest.hexdigest()[:32], changes


def _tensors(directory: Path) -> dict[str, Tensor]:
    path = directory / WEIGHTS_FILE
    if not path.is_file():
        pickled = next((each.name for each in sorted(directory.glob("*.bin"))), "")
        hint = f"; {pickled} is a pickle, which is never loaded" if pickled else ""
        raise AdapterError(f"{directory.name!r} has no {WEIGHTS_FILE}{hint}")
    try:
        with safe_open(str(path), framework="pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise AdapterError(f"{WEIGHTS_FILE} cannot be read: {error}") from None
    strange = next((name for name, tensor in tensors.items() if not tensor.is_floating_point()), None)
    if strange is not None:
        raise AdapterError(f"{strange} is stored as {tensors[strange].dtype}, and not as floats")
    return {name.removeprefix(PEFT_PREFIX): tensor for name, tensor in tensors.items()}


def _spelled(targets: Sequence[AdapterTarget], tensors: Tensors) -> list[AdapterTarget]:
    """Returns the targets by the adapter's names, which depend on the class that it was trained with."""
    found = next(
        (prefix for prefix in LAYER_PREFIXES if any(name.startswith(f"{prefix}layers.") for name in tensors)), None
    )
    if found is None:
        return list(targets)
    return [replace(target, names=tuple(found + inner(name) for name in target.names)) for target in targets]


def _check_names(config: AdapterConfig, tensors: Tensors, targets: Sequence[AdapterTarget]) -> None:
    """Raises `AdapterError` for unexpected and for missing tensors.

    Changes to layers that only process images are ignored, like these layers.
    """
    known = [name for target in targets for name in target.names]
    kinds = ", ".join(sorted({name.rpartition(".")[2] for name in known}))
    modules = {name: name.removesuffix(LORA_A_SUFFIX).removesuffix(LORA_B_SUFFIX) for name in tensors}
    left = {module for module in modules.values() if is_beside_text(module)}
    allowed = {*known, *left}
    for name, module in modules.items():
        if module == name:
            raise AdapterError(f"it has the tensor {name}, and only lora_A and lora_B of linear layers are supported")
        if module not in allowed:
            raise AdapterError(f"it changes {module}, which this model lacks or cannot have changed; it can: {kinds}")
    if left.issuperset(modules.values()):
        raise AdapterError(f"{WEIGHTS_FILE} has no tensors of the language model")
    for suffix in config.targets:
        if not any(name == suffix or name.endswith(f".{suffix}") for name in allowed):
            raise AdapterError(
                f"its target module {suffix!r} is not among the modules that adapters can change: {kinds}"
            )
    for module in known:
        missing = [end for end in (LORA_A_SUFFIX, LORA_B_SUFFIX) if module + end not in tensors]
        if len(missing) == 1 or (missing and config.targeted(module)):
            raise AdapterError(f"it lacks the tensor {PEFT_PREFIX}{module}{missing[0]}")


def _change(
    config: AdapterConfig, tensors: Tensors, target: AdapterTarget, device: torch.device, dtype: torch.dtype
) -> LowRank | None:
    """Stacks the parts' A; scales, reorders and transposes each part's B. Keeps this rank's part."""
    shrinking: list[Tensor] = []
    parts: list[Expansion] = []
    first = rank_first = 0
    for name, size, shape, outputs in zip(target.names, target.sizes, target.shapes, target.outputs, strict=True):
        if name + LORA_A_SUFFIX in tensors:
            rank = config.rank_of(name)
            a = _shaped(tensors, name + LORA_A_SUFFIX, (rank, shape[1]))
            b = _shaped(tensors, name + LORA_B_SUFFIX, (shape[0], rank))[outputs]
            b = b.float() * (config.scale_of(name) * target.scale)
            shrinking.append(a[:, target.columns])
            parts.append(Expansion(first, rank_first, b.t().to(device, dtype).contiguous()))
            rank_first += rank
        first += size
    if not parts:
        return None
    return LowRank(torch.cat([a.to(dtype) for a in shrinking]).to(device).contiguous(), tuple(parts))


def _shaped(tensors: Tensors, name: str, shape: tuple[int, int]) -> Tensor:
    found = tuple(tensors[name].shape)
    if found != shape:
        raise AdapterError(
            f"{PEFT_PREFIX}{name} has shape {list(found)}, but this model and its config ask for {list(shape)}"
        )
    return tensors[name]
