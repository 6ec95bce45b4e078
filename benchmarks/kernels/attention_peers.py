"""Computes attention by PyTorch on contiguous keys and values: by scaled_dot_product_attention, and FlexAttention.

Every backend is asked in the form that it is best at. One query a sequence: the query heads of a KV head become the
rows of one head, which needs no mask, and no grouping that a backend might not know. A prompt: grouped, and with keys
and values that were repeated for their query heads before the clock started.
"""

import functools
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
ON_CPU = ("flash", "math")
Peer = Callable[[], Tensor]


def decode_peers(queries: Tensor, keys: Tensor, values: Tensor, flex: bool) -> dict[str, Peer]:
    """Makes PyTorch's ways of a decode step, where the query of a sequence sees all its keys.

    Queries `[works, heads, dim]`, keys and values `[works, kv_heads, tokens, dim]`; a peer gives `[works, heads, dim]`.
    """
    works, heads, dim = queries.shape
    rows = queries.view(works, keys.shape[1], -1, dim)

    def backend(kind: SDPBackend) -> Peer:
        def run() -> Tensor:
            with sdpa_kernel(kind):
                return scaled_dot_product_attention(rows, keys, values).reshape(works, heads, dim)

        return run

    peers = {name: backend(kind) for name, kind in _backends(queries.device)}
    if flex:
        compiled = torch.compile(flex_attention, dynamic=False)
        one = queries[:, :, None]
        peers["flex"] = lambda: compiled(one, keys, values, enable_gqa=True).reshape(works, heads, dim)
    return peers


def prefill_peers(queries: Tensor, keys: Tensor, values: Tensor, flex: bool) -> dict[str, Peer]:
    """Makes peers for the last queries of one sequence, causal.

    Queries `[tokens, heads, dim]`, keys and values `[1, kv_heads, kv_tokens, dim]`; peers give `[tokens, heads, dim]`.
    """
    tokens, kv_tokens = len(queries), keys.shape[2]
    own = queries.transpose(0, 1).contiguous()[None]
    repeats = own.shape[1] // keys.shape[1]
    # A chunk's mask is not is_causal, which begins at the first key.
    whole = tokens == kv_tokens
    dense = None if whole else _causal(tokens, kv_tokens, queries.device)

    def backend(kind: SDPBackend, grouped: bool) -> Peer:
        by_corner = not whole and kind in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)
        k, v = (keys, values) if grouped else (each.repeat_interleave(repeats, 1) for each in (keys, values))

        def run() -> Tensor:
            mask = _lower_right(tokens, kv_tokens) if by_corner else dense
            with sdpa_kernel(kind):
                found = scaled_dot_product_attention(own, k, v, mask, is_causal=whole, enable_gqa=grouped)
            return found[0].transpose(0, 1)

        return run

    peers = {}
    for name, kind in _backends(queries.device):
        if repeats > 1 and name != "efficient":
            peers[name] = backend(kind, grouped=True)
        if repeats == 1 or name != "math":
            peers[f"{name}, repeated"] = backend(kind, grouped=False)
    if flex:
        ahead = kv_tokens - tokens
        mask = create_block_mask(
            lambda batch, head, query, key: query + ahead >= key, None, None, tokens, kv_tokens, str(queries.device)
        )
        compiled = torch.compile(flex_attention, dynamic=False)
        peers["flex"] = lambda: compiled(own, keys, values, block_mask=mask, enable_gqa=True)[0].transpose(0, 1)
    return peers


def _backends(device: torch.device) -> list[tuple[str, SDPBackend]]:
    return [(name, kind) for name, kind in BACKENDS.items() if device.type == "cuda" or name in ON_CPU]


@functools.cache
def _lower_right(tokens: int, kv_tokens: int) -> Tensor:
    from torch.nn.attention.bias import causal_lower_right  # a second of PyTorch's compiler, if a peer runs at all

    return cast(Tensor, causal_lower_right(tokens, kv_tokens))


def _causal(tokens: int, kv_tokens: int, device: torch.device) -> Tensor:
    positions = torch.arange(kv_tokens, device=device)
    return positions[kv_tokens - tokens :, None] >= positions
