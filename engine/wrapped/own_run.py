"""Runs texts by transformers alone, and records inputs and outputs of each attention module for the proof."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from engine.wrapped.linears import is_linear

TEXT_LENGTHS = (24, 19)


@dataclass(frozen=True)
class RecordedAttention:
    """Inputs and outputs of one attention module, `[tokens of all texts, hidden]` each."""

    module: Any
    inputs: Tensor
    outputs: Tensor


@dataclass(frozen=True)
class OwnRun:
    """Results of transformers' own attention; tokens of all texts are concatenated."""

    texts: list[list[int]]
    attentions: list[RecordedAttention]
    logits: Tensor  # [tokens of all texts, vocab]
    products: set[int]  # ids of the linear layers that were called; a model uses the weights of others directly
    of_all_tokens: set[int]  # ids of linear layers whose inputs always had a row for each token, unlike experts'
    widest: int  # terms of the longest sum in a product


def own_run(own: Any, modules: Sequence[Any]) -> OwnRun:
    """Runs random texts by transformers' eager attention, whole and one by one."""
    generator = torch.Generator().manual_seed(0)
    texts = [torch.randint(own.config.vocab_size, (length,), generator=generator).tolist() for length in TEXT_LENGTHS]
    recorded: list[tuple[list[Tensor], list[Tensor]]] = [([], []) for _ in modules]
    logits = []
    own.set_attn_implementation("eager")
    products: set[int] = set()
    of_some_tokens: set[int] = set()
    length = 0

    def note_product(module: nn.Module, args: tuple[Any, ...], *_: Any) -> None:
        products.add(id(module))
        if not args or args[0].numel() != length * args[0].shape[-1]:
            of_some_tokens.add(id(module))

    with torch.inference_mode(), ExitStack() as hooks:
        for module in filter(is_linear, own.modules()):
            hooks.enter_context(_hook(module, note_product))
        for module, (inputs, outputs) in zip(modules, recorded, strict=True):
            hooks.enter_context(_hook(module, partial(_keep, inputs, outputs)))
        for text in texts:
            length = len(text)
            ids = torch.tensor([text], device=own.device)
            positions = torch.arange(len(text), device=own.device)[None]
            logits.append(own(input_ids=ids, position_ids=positions, use_cache=False).logits[0])
    attentions = [
        RecordedAttention(module, torch.cat(inputs), torch.cat(outputs))
        for module, (inputs, outputs) in zip(modules, recorded, strict=True)
    ]
    widest = max(weight.shape[-1] for weight in own.parameters())
    return OwnRun(texts, attentions, torch.cat(logits), products, products - of_some_tokens, widest)


def _keep(
    inputs: list[Tensor],
    outputs: list[Tensor],
    _: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    output: Any,
) -> None:
    inputs.append((kwargs["hidden_states"] if "hidden_states" in kwargs else args[0])[0])
    outputs.append((output[0] if isinstance(output, tuple) else output)[0])


@contextmanager
def _hook(module: nn.Module, callback: Callable[..., None]) -> Iterator[None]:
    """Calls `look` with module, arguments, keyword arguments and output of each forward pass."""
    hook = module.register_forward_hook(callback, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()
