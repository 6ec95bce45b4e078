"""Finds the attention of each layer of a model, by one forward pass over a few tokens that computes no attention.

The keys that a query may see follow from the function by which transformers would make a mask: it is evaluated for the
maximum length, so that windows of any size, and masks that are not causal, are found. A mask that is causal only up to
the length that is served, as chunks of attention are, is full attention there.

Some models' last layers attend to the keys and values of an earlier layer. They are known by being given its tensors.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from contracts.errors import ModelError
from engine.model.config import HeadAttention
from engine.model.config_files import sentence_of
from engine.wrapped.config import OwnConfig

PROBE_ATTENTION_NAME = "baton_probe"
PROBE_TOKENS = 8
MASK_QUERIES = 16
"""Queries, evenly spread over the maximum length, whose masks are checked."""
MAX_MASK_TOKENS = 1 << 18
"""Length for which masks are checked, unless longer sequences are served: no known window is as wide."""
IGNORED_ARGUMENTS = {
    "dropout",  # only for training
    "is_causal",
    "sliding_window",  # the mask says it as well
    "position_ids",  # of the rotation, which is the module's own
    "position_embeddings",
    "cache_position",
    "use_cache",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "return_dict",
}
"""Arguments of attention that do not change its result here."""
SERVED_ARGUMENTS = {"scaling", "softcap", "s_aux", "sinks"}


@dataclass(frozen=True)
class OwnAttention:
    """One attention module of a model."""

    module: Any
    attention: HeadAttention
    value_dim: int
    sinks: Tensor | None  # [heads]
    source: int | None = None  # place in the order of calls of the module whose keys and values it shares


class WindowMask(Tensor):
    """A mask of zeros that knows the window in tokens that it stands for; None if it is neither causal nor a window.

    A slice that keeps every row knows it, too; other results of operations lack the attribute.
    """

    window: int | None

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        if isinstance(found, WindowMask) and found.shape == self.shape and hasattr(self, "window"):
            found.window = self.window
        return found


def probe(model: Any, own: OwnConfig) -> list[OwnAttention]:
    """Returns the attention modules of a model in the order of their calls.

    Raises `ModelError` if one needs something that paged attention does not have.
    """
    found: list[OwnAttention] = []
    keys_of_calls: list[Tensor] = []  # keys of each call
    device, longest = model.device, max(own.max_model_len, min(own.positions, MAX_MASK_TOKENS))

    def record(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None, **arguments: Any
    ) -> tuple[Tensor, None]:
        label = f"{own.name}: attention {len(found)} ({type(module).__name__})"
        if any(each.module is module for each in found):
            raise ModelError(f"{label} is called twice in one pass, which is not served")
        described = _described(label, module, query, key, value, attention_mask, arguments)
        source = next((at for at, earlier in enumerate(keys_of_calls) if earlier.data_ptr() == key.data_ptr()), None)
        found.append(replace(described, source=source))
        keys_of_calls.append(key)
        return query.new_zeros((1, query.shape[2], query.shape[1], value.shape[3])), None

    def mask(mask_function: Callable[..., Tensor], q_length: int, kv_length: int, **_: Any) -> Tensor:
        made = torch.zeros((1, 1, q_length, kv_length), dtype=torch.bool, device=device).as_subclass(WindowMask)
        made.window = _window(mask_function, longest, device)
        if made.window is None and own.max_model_len < longest:
            made.window = 0 if _window(mask_function, own.max_model_len, device) == 0 else None
        return made

    AttentionInterface.register(PROBE_ATTENTION_NAME, record)
    AttentionMaskInterface.register(PROBE_ATTENTION_NAME, mask)
    try:
        model.set_attn_implementation(PROBE_ATTENTION_NAME)
        positions = torch.arange(PROBE_TOKENS, device=device)[None]
        model(input_ids=positions, position_ids=positions, use_cache=False)
    except ModelError:
        raise
    except Exception as error:  # a model's own code may raise anything
        raise ModelError(f"{own.name}: its own code fails on {PROBE_TOKENS} tokens: {sentence_of(error)}") from error
    finally:
        attentions = [*found]
        found.clear()  # transformers' registry keeps the function, and must not keep the model
    if not attentions:
        raise ModelError(
            f"{own.name}: {type(model).__name__} computes attention itself, not by transformers' attention interface,"
            " so that KV cannot be paged"
        )
    return attentions


def layers_of(attentions: Sequence[OwnAttention]) -> list[int]:
    """Returns the layer of the KV pool for each attention module: its own, or that of the module it shares with."""
    own = [at for at, each in enumerate(attentions) if each.source is None]
    return [own.index(at if each.source is None else each.source) for at, each in enumerate(attentions)]


def _described(
    label: str, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, arguments: dict[str, Any]
) -> OwnAttention:
    """Returns the attention of one call. Raises `ModelError`, beginning with `label`, if it is not supported."""
    requested = {name for name, wish in arguments.items() if wish is not None and wish is not False}
    unknown = sorted(requested - IGNORED_ARGUMENTS - SERVED_ARGUMENTS)
    if unknown:
        raise ModelError(f"{label} asks for {', '.join(unknown)}, which paged attention has not")
    window = getattr(mask, "window", None)
    if window is None or arguments.get("is_causal") is False:
        raise ModelError(f"{label} {_unserved(module, mask)}")
    heads, kv_heads, dim = query.shape[1], key.shape[1], query.shape[3]
    sinks = arguments.get("s_aux") if arguments.get("s_aux") is not None else arguments.get("sinks")
    if heads % kv_heads or value.shape[1] != kv_heads or (sinks is not None and tuple(sinks.shape) != (heads,)):
        raise ModelError(f"{label} has {heads} heads, {kv_heads} of keys and {value.shape[1]} of values")
    return OwnAttention(
        module=module,
        attention=HeadAttention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=max(dim, value.shape[3]),
            scale=float(arguments.get("scaling") or dim**-0.5),
            rope=None,
            window=window,
            softcap=float(arguments.get("softcap") or 0.0),
            sinks=sinks is not None,
        ),
        value_dim=value.shape[3],
        sinks=sinks,
    )


def _unserved(module: Any, mask: Any) -> str:
    if mask is not None and not hasattr(mask, "window"):  # the model has changed its mask argument
        return "adds to its scores, by a mask of its own, which is not served"
    chunk = getattr(getattr(module, "config", None), "attention_chunk_size", None)
    chunks = f": only tokens of the same chunk of {chunk} tokens" if chunk else ""
    shorter = f"; --max-model-len {chunk} serves it" if chunk else ""
    return f"sees other tokens than all before, or a window of them{chunks}, which is not served{shorter}"


def _window(sees: Callable[..., Tensor], longest: int, device: torch.device) -> int | None:
    """Returns the window in tokens, 0 for all; None if the mask is neither causal nor a window."""
    first = torch.zeros((), dtype=torch.long, device=device)
    keys = torch.arange(longest, device=device)
    queries = torch.linspace(0, longest - 1, min(MASK_QUERIES, longest), device=device).long()[:, None]
    seen = sees(first, first, queries, keys[None]) & torch.ones_like(keys, dtype=torch.bool)
    count = int(seen[-1].sum())
    window = 0 if count == longest else count
    expected = keys <= queries if not window else (keys <= queries) & (keys > queries - window)
    return window if count and torch.equal(seen, expected) else None
