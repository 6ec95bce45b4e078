"""Loads the weights of latent attention, and chooses between its absorbed and expanded form.

Multi-head latent attention (DeepSeek-V2, https://arxiv.org/abs/2405.04434), for a normalized hidden state x and head h:

    c, k = W x            the latent vector, and a key shared by all heads; stored: c normalized, k rotated
    key_h = K_h c | k     of nope_dim + rope_dim numbers
    value_h = V_h c
    q_h = a_h | b_h       a query's two parts, b_h rotated

Absorbed: no key or value is built. q_h key_h = (K_h^T a_h) c + b_h k, and a weighted sum of values is V_h times the
weighted sum of latent vectors. All heads attend to one vector of each token, `[c | k]`, whose value is c; a pair of
query and key costs 2 latent_rank + rope_dim operations. Expanded: keys and values are built once for all queries of a
work, and a pair costs nope_dim + rope_dim + value_dim.
"""

from dataclasses import dataclass
from typing import Generic

import torch
from torch import Tensor

from engine.model.config import LatentAttention, ModelConfig
from engine.model.families.family import LayerNames
from engine.model.layers.linear import AnyLinear, LatentProducts
from engine.model.layers.linear_factory import LinearFactory
from engine.model.rope import halves_order
from engine.parallel.shard import scaled


@dataclass(frozen=True, slots=True)
class LatentWeights(Generic[AnyLinear]):
    """The weights of a `LatentAttention`.

    The outputs of `down` are, side by side: the queries' latent vector (or the queries), the latent vector, the shared
    key. `query_norm` and `query` turn the queries' latent vector into queries.
    """

    down: AnyLinear
    query_norm: Tensor | None  # fp32 [query_rank]
    query: AnyLinear | None
    norm: Tensor  # fp32 [latent_rank]
    products: LatentProducts
    output: AnyLinear

    def held(self) -> list[Tensor]:
        query = [] if self.query is None else self.query.held()
        norms = [norm for norm in (self.query_norm, self.norm) if norm is not None]
        return [*norms, *self.down.held(), *query, *self.products.held(), *self.output.held()]


def load_latent(
    config: ModelConfig, attention: LatentAttention, make: LinearFactory[AnyLinear], names: LayerNames
) -> LatentWeights[AnyLinear]:
    """Loads a layer's latent attention. Raises `ModelError` if a tensor is missing or has another shape."""
    hidden, rank = config.hidden_size, attention.query_rank
    queries, latent = attention.heads * (attention.nope_dim + attention.rope_dim), attention.latent_rank
    first = rank or queries
    query_name = names.query_down if rank else names.query
    order, query_order = _orders(attention)
    own_heads = make.group.shard.part(attention.heads)
    own_queries = scaled(own_heads, attention.nope_dim + attention.rope_dim)
    return LatentWeights(
        down=make.linear(
            [query_name, names.latent_down],
            [first, latent + attention.rope_dim],
            hidden,
            attention.bias,
            order=order,
            held=[slice(0, rank) if rank else own_queries, slice(0, latent + attention.rope_dim)],
        ),
        query_norm=make.norm(names.query_down_norm, rank) if rank else None,
        query=make.linear([names.query_up], [queries], rank, order=query_order, held=[own_queries]) if rank else None,
        norm=make.norm(names.latent_norm, latent),
        products=make.latent(names.latent_up, attention),
        output=make.row_parallel(
            names.attention_output,
            hidden,
            attention.heads * attention.value_dim,
            attention.heads,
            attention.bias,
            scale=config.residual_scale,
        ),
    )


def _orders(attention: LatentAttention) -> tuple[Tensor | None, Tensor | None]:
    """Returns the orders of the outputs of `down` and `query`; None: the checkpoint's."""
    if not attention.rope.interleaved:
        return None, None
    rotated, nope = attention.rope_dim, attention.nope_dim
    queries = halves_order(attention.heads, nope + rotated, rotated, begin=nope)
    first = torch.arange(attention.query_rank) if attention.query_rank else queries
    shared = halves_order(1, attention.latent_rank + rotated, rotated, begin=attention.latent_rank)
    return torch.cat((first, shared + len(first))), queries


def expands(attention: LatentAttention, queries: int, keys: int) -> bool:
    """Returns whether the expanded form takes fewer operations for `queries`, the last of `keys` tokens."""
    pairs = queries * keys - queries * (queries - 1) // 2
    products = attention.latent_rank * (attention.nope_dim + attention.value_dim)  # for a query, or for a key
    saved = pairs * (2 * attention.latent_rank - attention.nope_dim - attention.value_dim)
    return saved > (keys - queries) * products
