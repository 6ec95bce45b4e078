"""Checks at load that a model computes the same over the KV pool as with transformers' own attention.

Two texts run by transformers' eager attention, whole and one by one; inputs and outputs of each attention module are
recorded. Then the texts run over a pool, in short pieces of both texts in each step. Each module gets its recorded
input and must give its recorded output; the recorded output is passed on, so that each module is compared alone.
Finally the logits are compared: wrong positions, or anything else that mixes tokens outside of attention, would show
in every row, because nearly all rows are near the end of a piece.

The bounds are relative distances (of Frobenius norms) in units of the number format's rounding u. Roundings are
independent, so their squares add:

- Scores up to S are rounded to u S before the softmax, so weights are off by u S. Queries, keys, values, weights, their
  sum and the output product are rounded once each: u sqrt(S^2 + 6) for a module.
- A layer rounds twelve times on the way to the logits, the embedding and head three times: u sqrt(12 L + 3) for L
  modules. On average a rounding is 0.4 u.
- A sum of n products in fp32 is rounded n times, which adds sqrt(n) 2 ** -24 to u.
- Quantized weights are equal on both sides, but with 16-bit formats inputs may be quantized as well: int8 is off by up
  to 1 / 254 of the largest of several inputs, as if u were 2 ** -6, fp8 (e4m3) by 2 ** -4 of each.

For logits the median row counts, since rounding may swap two experts with nearly equal scores.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from contracts.errors import ModelError
from contracts.kinds import Quantization
from contracts.kv.spec import KVSpec, blocks_for
from engine.engine import Engine
from engine.model.batch import build_batch
from engine.model.config import HeadAttention
from engine.plan import StepPlan, Work
from engine.wrapped.own_run import TEXT_LENGTHS, OwnRun, RecordedAttention

PIECE_TOKENS = (1, 3, 2)
"""Tokens of a text in successive steps, in turn."""
FP32_ROUNDING = 2.0**-24
INPUT_ROUNDING: dict[Quantization, float] = {"none": 0.0, "int8": 2.0**-6, "int4": 2.0**-6, "fp8": 2.0**-4}
"""Addition to u for inputs that are quantized like the weights."""


def blocks_needed(block_tokens: int) -> int:
    return 1 + sum(blocks_for(length, block_tokens) for length in TEXT_LENGTHS)


def prove(engine: Engine, own: OwnRun, quantization: Quantization) -> None:
    """Raises `ModelError` if the engine's model computes something else over its pool than `own`."""
    name = engine.model_config.name
    sums = FP32_ROUNDING * sqrt(own.widest)
    rounding = sums + torch.finfo(engine.backend.dtype).eps / 2
    if engine.backend.dtype != torch.float32:
        rounding += INPUT_ROUNDING[quantization]
    begins = [0]
    for text in own.texts[:-1]:
        begins.append(begins[-1] + len(text))
    found = torch.empty_like(own.logits)
    checks = [_Check(recorded) for recorded in own.attentions]
    with torch.inference_mode(), ExitStack() as hooks:
        for check in checks:
            hooks.enter_context(check.forcing())
        for works in _steps(own.texts, engine.pool.spec):
            rows = [begins[work.sequence] + work.start + at for work in works for at in range(len(work.token_ids))]
            for check in checks:
                check.rows = rows
            found[rows] = _logits(engine, works)
    for layer, check in enumerate(checks):
        off, bound = check.distance(), rounding * sqrt(check.largest**2 + 6)
        if not off <= bound:
            module = type(check.recorded.module).__name__
            raise ModelError(
                f"{name}: over the KV pool attention {layer} ({module}) gives other answers"
                f" than transformers' own: {off:.2g} of their size off, where rounding explains {bound:.2g}"
            )
    expected = own.logits.float()
    off = float(((found.float() - expected).norm(dim=-1) / expected.norm(dim=-1)).median())
    bound = rounding * sqrt(12 * len(checks) + 3)
    if not off <= bound:
        raise ModelError(
            f"{name}: in pieces and beside another text it gives other logits than by transformers alone:"
            f" {off:.2g} of their size off, where rounding explains {bound:.2g}"
        )


def _steps(texts: Sequence[list[int]], spec: KVSpec) -> Iterator[list[Work]]:
    blocks, first = [], 1
    for text in texts:
        count = blocks_for(len(text), spec.groups[0].block_tokens)
        blocks.append([*range(first, first + count)])
        first += count
    starts, step = [0] * len(texts), 0
    while any(start < len(text) for start, text in zip(starts, texts, strict=True)):
        works = []
        for number, text in enumerate(texts):
            begin, count = starts[number], PIECE_TOKENS[(step + number) % len(PIECE_TOKENS)]
            if begin < len(text):
                works.append(Work(number, begin, text[begin : begin + count], (blocks[number],) * len(spec.groups)))
                starts[number] += count
        yield works
        step += 1


def _logits(engine: Engine, works: list[Work]) -> Tensor:
    device, pool = engine.backend.device, engine.pool
    batch = build_batch(StepPlan(0, works), pool.spec.groups[0].block_tokens, device, None)
    batch = replace(batch, logit_rows=torch.arange(len(batch.token_ids), device=device))
    pool.begin_step(works, is_read=False)
    for group, tables in enumerate(batch.groups):
        pool.enter(group, tables.fresh_blocks)
    hidden = engine.model.forward(batch, engine.attention.begin(batch), pool.written)
    return engine.model.logits(hidden)


class _Check:
    """Compares one attention module with its record, and passes the recorded output on."""

    def __init__(self, recorded: RecordedAttention) -> None:
        self.recorded = recorded
        self.rows: list[int] = []  # of the current step
        self.largest = 0.0  # largest score so far
        self._off = self._size = 0.0

    def distance(self) -> float:
        return sqrt(self._off / self._size) if self._size else 0.0

    @contextmanager
    def forcing(self) -> Iterator[None]:
        """Makes the module take and give the recorded values."""
        module = self.recorded.module
        paged = module.paged_attention

        def measured(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            self.largest = max(self.largest, _largest_score(query[0], key[0], paged.attention))
            found: Tensor = paged(query, key, value)
            return found

        module.paged_attention = measured
        before = module.register_forward_pre_hook(self._enter, with_kwargs=True)
        after = module.register_forward_hook(self._leave)
        try:
            yield
        finally:
            before.remove()
            after.remove()
            module.paged_attention = paged

    def _enter(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        states = self.recorded.inputs[self.rows].unsqueeze(0)
        if "hidden_states" in kwargs:
            return args, {**kwargs, "hidden_states": states}
        return (states, *args[1:]), kwargs

    def _leave(self, _: Any, args: tuple[Any, ...], output: Any) -> Any:
        expected = self.recorded.outputs[self.rows].unsqueeze(0)
        found = output[0] if isinstance(output, tuple) else output
        self._off += float((found.float() - expected.float()).square().sum())
        self._size += float(expected.float().square().sum())
        return (expected, *output[1:]) if isinstance(output, tuple) else expected


def _largest_score(query: Tensor, key: Tensor, attention: HeadAttention) -> float:
    """Returns the largest absolute score of `[heads, tokens, dim]` queries and `[kv_heads, tokens, dim]` keys."""
    shared = query.unflatten(0, (attention.kv_heads, -1)).flatten(1, 2)
    largest = float((shared.float() @ key.float().transpose(1, 2)).abs().max()) * attention.scale
    return min(largest, attention.softcap) if attention.softcap else largest
