"""Proves, when a model is loaded, that it computes over the KV pool what transformers' own attention computes.

Two texts run as transformers runs them, one by one and whole, by its plainest attention; what goes into each attention
module, and what comes out, is kept. Then they run over a pool, in pieces that lie beside each other in flat steps. Each
module gets the kept input and has to give the kept output; whatever it gives, the kept output goes on, so that each is
compared alone. Behind the last layer the logits are compared: positions, or anything that mixes tokens outside of
attention, would show there in every row, because nearly all rows are near the end of a piece.

The bounds are relative distances (of Frobenius norms), in roundings u of the number format; roundings are independent,
so their squares add. Scores up to S are rounded to u S before their softmax, and so weights are off by u S; queries,
keys, values, weights, their sum and the product behind it are rounded once each: u sqrt(S^2 + 6). A layer rounds twelve
times on the way to the logits, the ends three times: u sqrt(12 L + 3) for L attention modules. On average a rounding is
0.4 u. A product's sum of n numbers in fp32 is rounded n times, which adds sqrt(n) 2 ** -24 to u. Quantized weights are
the same numbers on both sides; but to multiply by them, in 16-bit formats, inputs may be quantized as well: int8 is off
by up to 1 / 254 of the largest of several inputs, as if u were 2 ** -6, fp8 (e4m3) by 2 ** -4 of each. Of logits the
median row counts: where a router of experts has two at nearly equal scores, rounding decides between them.
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
from engine.executor import Engine
from engine.model.batch import build_batch
from engine.model.config import HeadAttention
from engine.plan import StepPlan, Work
from engine.wrapped.own_run import TEXT_LENGTHS, OwnRun, RecordedAttention

PIECE_TOKENS = (1, 3, 2)
"""Tokens of the pieces, in turn."""
FP32_ROUNDING = 2.0**-24
INPUT_ROUNDING: dict[Quantization, float] = {"none": 0.0, "int8": 2.0**-6, "int4": 2.0**-6, "fp8": 2.0**-4}
"""What is added to u by inputs that are quantized as the weights are."""


def blocks_needed(block_tokens: int) -> int:
    """Returns the blocks of a pool over which a model is proved, the null block included."""
    return 1 + sum(blocks_for(length, block_tokens) for length in TEXT_LENGTHS)


def prove(engine: Engine, own: OwnRun, quantization: Quantization) -> None:
    """Compares what the engine's model, whose weights are quantized so, computes over its pool.

    Raises `ModelError` where it is something else.
    """
    name = engine.model_config.name
    sums = FP32_ROUNDING * sqrt(own.widest)
    rounding = sums + torch.finfo(engine.backend.dtype).eps / 2
    if engine.backend.dtype != torch.float32:
        rounding += INPUT_ROUNDING[quantization]
    begins = [0]
    for text in own.texts[:-1]:
        begins.append(begins[-1] + len(text))
    found = torch.empty_like(own.logits)
    checks = [_Check(kept) for kept in own.kept]
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
            raise ModelError(
                f"{name}: over the KV pool attention {layer} ({type(check.kept.module).__name__}) gives other answers"
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
    """Cuts texts into pieces; each step has the next one of each text."""
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
    """Computes `[tokens, vocab]` of a step."""
    device, pool = engine.backend.device, engine.pool
    batch = build_batch(StepPlan(0, works), pool.spec.groups[0].block_tokens, device, None)
    batch = replace(batch, logit_rows=torch.arange(len(batch.token_ids), device=device))
    pool.begin_step(works, is_read=False)
    for group, tables in enumerate(batch.groups):
        pool.enter(group, tables.fresh_blocks)
    hidden = engine.model.forward(batch, engine.attention.begin(batch), pool.written)
    return engine.model.logits(hidden)


class _Check:
    """Compares one attention module with what was kept of it, and puts what was kept in the place of what it gives."""

    def __init__(self, kept: RecordedAttention) -> None:
        self.kept = kept
        self.rows: list[int] = []  # of the step under way
        self.largest = 0.0  # of all scores
        self._off = self._size = 0.0

    def distance(self) -> float:
        """Returns how far off the outputs were, relative to their size."""
        return sqrt(self._off / self._size) if self._size else 0.0

    @contextmanager
    def forcing(self) -> Iterator[None]:
        """Has the module take and give what was kept."""
        module = self.kept.module
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
        states = self.kept.inputs[self.rows].unsqueeze(0)
        if "hidden_states" in kwargs:
            return args, {**kwargs, "hidden_states": states}
        return (states, *args[1:]), kwargs

    def _leave(self, _: Any, args: tuple[Any, ...], output: Any) -> Any:
        expected = self.kept.outputs[self.rows].unsqueeze(0)
        found = output[0] if isinstance(output, tuple) else output
        self._off += float((found.float() - expected.float()).square().sum())
        self._size += float(expected.float().square().sum())
        return (expected, *output[1:]) if isinstance(output, tuple) else expected


def _largest_score(query: Tensor, key: Tensor, attention: HeadAttention) -> float:
    """Returns the largest score, of any sign, between `[heads, tokens, dim]` queries and `[kv_heads, tokens, dim]`."""
    shared = query.unflatten(0, (attention.kv_heads, -1)).flatten(1, 2)
    largest = float((shared.float() @ key.float().transpose(1, 2)).abs().max()) * attention.scale
    return min(largest, attention.softcap) if attention.softcap else largest
