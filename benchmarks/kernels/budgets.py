"""Budgets of hot loops: how many instructions a kernel may issue, by the row of the table and the kind of GPU.

A processor issues four warp instructions a clock. Where a kernel reads weights from memory, the instructions of a
weight should take no longer than its bytes:

    instructions of a weight <= processors x 4 x 32 x clock / (memory rate / bytes of a weight)

`affordable` computes it; a target is `ISSUE_SHARE` of it, for no kernel fills every issue slot. A loop that multiplies
prompts has a bound on the instructions beside each tensor-core instruction instead. A barrier stops all warps of a
block, and a converted weight that passes through shared memory costs a store, a load and a barrier. A budget is the
number that a loop may have now; where the target is below it, the target is not met.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.kernels.case import Arguments
from benchmarks.kernels.experts import ExpertLayer
from benchmarks.kernels.rows import value_of
from benchmarks.kernels.weights import Groups
from benchmarks.simulated.machine_code import Loop
from pricing.roofline.gpu_rates import GPU_RATES, WARP_THREADS

INT4, AWQ, MXFP4, INT8, FP8, FP8_BLOCKS = (
    value_of("groups", name) for name in ("int4", "AWQ", "MXFP4", "int8", "fp8", "fp8 blocks")
)
GPT_OSS, QWEN_MOE = (value_of("layer", name) for name in ("gpt-oss-20b", "Qwen3-30B-A3B"))
MIXTRAL, DEEPSEEK = (value_of("layer", name) for name in ("Mixtral-8x7B", "DeepSeek-V3"))
LITE_HEADS = value_of("part_heads", "DeepSeek-V2-Lite")
LLAMA, GATE_UP = value_of("heads", "Llama-3.1-8B"), value_of("sizes", "gate and up")
LONG_PROMPT = {"tokens": 8192, "context": 8192, "heads": LLAMA}
ISSUE_SHARE = 0.8
MIN_TILE_ROWS = 16


RATES_BY_SM = {80: GPU_RATES["A100"], 89: GPU_RATES["RTX 4090"], 90: GPU_RATES["H100"], 120: GPU_RATES["RTX 5090"]}


def affordable(sm: int, weight_bytes: float) -> float:
    """Returns the instructions of a weight that all issue slots allow while memory brings its bytes.

    Example: int4 in groups of 32 with scales of 16 bits, 0.5625 bytes, on an H100: 5.2.
    """
    return RATES_BY_SM[sm].issue * WARP_THREADS * weight_bytes / RATES_BY_SM[sm].read


def bytes_of(groups: Groups) -> float:
    """Returns the bytes of a weight with its part of the 16-bit scales and offsets."""
    terms = 2 * (1 + groups.offsets + groups.zeros) / groups.size if groups.size else 0.0
    return (0.5 if groups.kind in ("int4", "fp4") else 1.0) + terms


@dataclass(frozen=True)
class Budget:
    """What every hot loop of a kernel may have when a row of the table is launched."""

    kernel: str
    row: Arguments
    launched: str  # the Triton function
    sm: int
    instructions: float  # of a weight where `rows` are given, else of a tensor-core instruction
    barriers: int
    shared_stores: int
    narrowest_bytes: int  # of a thread's load from global memory
    rows: int = 0  # that multiply each weight of a tile; twice as many where sums of inputs are products, too
    target: float = 0.0  # of the instructions
    product_waits: int | None = None  # for products of a warp group, which the assembler may wait for one by one

    def share(self, loop: Loop) -> float:
        """Returns the instructions of a weight, or of a tensor-core instruction."""
        return loop.instructions / (loop.weights(self.rows) if self.rows else max(loop.tensor, 1))

    def exceeded(self, loop: Loop) -> Iterator[str]:
        """Yields a sentence for each limit of the budget that the loop exceeds."""
        share = self.share(loop)
        if share > self.instructions:
            yield f"{share:.2f} instructions, beyond {self.instructions}"
        if loop.barriers > self.barriers:
            yield f"{loop.barriers} barriers, beyond {self.barriers}"
        if loop.shared_stores > self.shared_stores:
            yield f"{loop.shared_stores} stores to shared memory, beyond {self.shared_stores}"
        if min(loop.load_bytes, default=self.narrowest_bytes) < self.narrowest_bytes:
            yield f"a load of {min(loop.load_bytes)} bytes, narrower than {self.narrowest_bytes}"
        if self.product_waits is not None and loop.product_waits > self.product_waits:
            yield f"{loop.product_waits} waits for products, beyond {self.product_waits}"
        if loop.spills:
            yield f"{loop.spills} accesses to spilled registers"


def dense(sm: int, groups: Groups, rows: int, instructions: float, barriers: int, stores: int) -> Budget:
    return Budget(
        "quantized_product",
        {"rows": rows, "sizes": GATE_UP, "groups": groups},
        "_multiply",
        sm,
        instructions,
        barriers,
        stores,
        narrowest_bytes=2,
        rows=max(rows, MIN_TILE_ROWS) * (1 + groups.offsets),
        target=ISSUE_SHARE * affordable(sm, bytes_of(groups)),
    )


def mixture(
    layer: ExpertLayer, groups: Groups, tokens: int, rows: int, instructions: float, barriers: int, stores: int
) -> Budget:
    return Budget(
        "quantized_experts" if rows == MIN_TILE_ROWS else "quantized_experts_prefill",
        {"tokens": tokens, "layer": layer, "groups": groups},
        "_multiply",
        90,
        instructions,
        barriers,
        stores,
        narrowest_bytes=2,
        rows=rows,
        target=ISSUE_SHARE * affordable(90, bytes_of(groups)),
    )


def quantized_decode(kv: str, instructions: float) -> Budget:
    row = {"batch": 1, "context": 32768, "heads": LLAMA, "kv": kv}
    return Budget("paged_decode_attention", row, "_attend_part", 90, instructions, 14, 10, 2, target=16.5)


BUDGETS = (
    dense(90, INT4, 1, 3.5, 8, 4),  # the stores are of scales
    dense(90, AWQ, 32, 3.0, 4, 2),
    dense(90, MXFP4, 1, 4.1, 8, 4),
    dense(90, INT8, 1, 5.8, 2, 0),
    dense(90, FP8, 1, 4.0, 2, 0),
    dense(90, FP8, 32, 4.0, 2, 0),
    dense(90, FP8_BLOCKS, 1, 4.0, 2, 1),
    dense(80, INT4, 1, 3.3, 8, 4),
    dense(80, AWQ, 32, 3.2, 4, 2),
    dense(89, INT4, 1, 3.4, 8, 4),
    dense(120, INT4, 1, 3.4, 8, 4),
    mixture(GPT_OSS, MXFP4, 1, 16, 5.0, 2, 0),
    mixture(QWEN_MOE, INT4, 1, 16, 3.3, 2, 0),
    mixture(GPT_OSS, MXFP4, 8192, 128, 5.0, 2, 0),
    mixture(QWEN_MOE, INT4, 8192, 128, 6.6, 2, 0),
    # Memory brings a tile of 64 positions in some 2,200 clocks; its 32 products leave 8,800 issue slots.
    Budget("paged_decode_attention", {"batch": 8, "context": 4096, "heads": LLAMA}, "_attend_part", 90, 13.0, 9, 7, 4),
    Budget("paged_decode_attention", {"batch": 8, "context": 4096, "heads": LLAMA}, "_attend_part", 80, 13.0, 9, 10, 4),
    # Of two loops the longer one masks keys that the diagonal crosses. The other one, with products beside the softmax,
    # has 24.1.
    Budget(
        "prefill_attention",
        {"tokens": 8192, "context": 8192, "heads": LLAMA, "flex": True},
        "_attend",
        90,
        40.0,
        2,
        0,
        4,
        product_waits=1,
    ),
    # Of two loops the longer one masks keys that the diagonal crosses; the other one has 24.3.
    Budget("expanded_attention", {"tokens": 8192, "part_heads": LITE_HEADS}, "_attend", 90, 32.0, 2, 0, 16),
    # Of quantized KV, a tile's 16.5 KiB come in some 1,130 clocks. The targets are 1.3 times the loops over bf16.
    quantized_decode("int8", 16.3),
    quantized_decode("fp8", 14.2),
    # Its longer loop masks keys that the diagonal crosses; the other one, which the target is for, has 38.6.
    Budget("prefill_attention", LONG_PROMPT | {"kv": "fp8"}, "_attend", 90, 46.0, 8, 11, 2, target=42.3),
    # Operands come from shared memory: nothing but addresses and copies stands between two products.
    Budget("experts_prefill", {"tokens": 8192, "layer": QWEN_MOE}, "_multiply", 90, 13.0, 2, 0, 16),
    *(
        Budget(
            "quantized_experts_rows",
            {"tokens": 8192, "layer": layer, "groups": groups},
            "_multiply",
            90,
            most,
            2,
            0,
            load,
        )
        for layer, groups, most, load in (
            (MIXTRAL, INT8, 25.0, 16),
            (MIXTRAL, FP8, 42.0, 16),
            (DEEPSEEK, FP8_BLOCKS, 47.0, 2),
        )
    ),
    Budget("quantized_row_product", {"rows": 2048, "sizes": GATE_UP, "groups": INT8}, "_multiply", 90, 24.0, 2, 0, 16),
    Budget(
        "quantized_row_product", {"rows": 2048, "sizes": GATE_UP, "groups": FP8_BLOCKS}, "_multiply", 90, 49.0, 2, 0, 2
    ),
)
