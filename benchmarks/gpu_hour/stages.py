"""Stages of a first hour with a GPU, the most informative first: three parts of ten minutes each.

Part one: does it start, is it right, and where does the time go. Part two: two processes on one GPU, invalid accesses,
and tuning. Part three: all architectures, and kernels that only some models need, quantized weights, rows and KV among
them. Limits are the longest times on an H100 with a cold compiler cache; those of a part add up to one call's time.
"""

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from benchmarks.gpu_hour.packages import ENGINE, HANDOFF, SYSTEM

ROOT = Path(__file__).resolve().parent.parent.parent
LARGE, SMALL = "llama-3.1-8b", "qwen3-0.6b"
KERNELS = {
    "rms_norm": 20,
    "gate": 15,
    "rope_and_store": 25,
    "attention/paged_decode_attention": 45,
    "attention/attention_parts": 20,
    "attention/prefill_attention": 50,
    "sampling/sample": 30,
    "sampling/score_floor": 30,
    "block_copy": 35,
}
"""Seconds for the tests of each: they compile many variants."""
OPERATORS = (
    "reference/attention/test_paged_attention",
    "triton/test_elementwise",
    "test_adjuster_steps",
    "triton/sampling/test_sampler",
    "test_triton_backend",
    "triton/linear_layers/test_quantized",
    "triton/linear_layers/test_packed_experts",
    "test_quantized_rows",
)
"""Tests of the engine's operators on the kernels, on a GPU where there is one."""
ADJUSTING_KERNELS = ("sampling/penalize", "sampling/token_mask", "sampling/forbid_tokens", "sampling/token_scores")
MIXTURE_KERNELS = ("moe/route", "moe/sort_by_expert", "moe/experts")
ADAPTER_KERNELS = ("lora",)
HANDOFF_KERNELS = ("block_digest",)
QUANTIZED_KERNELS = ("quantized/product", "quantized/dequantize", "moe/packed_products")
QUANTIZED_ROWS = (
    "quantized/rows",
    "quantized/norm_rows",
    "quantized/gate_rows",
    "quantized/row_product",
    "moe/row_products",
)
QUANTIZED_KV = ("quantized/kv_bytes", "quantized/kv_halves", "quantized/latent_bytes")
LATENT_KERNELS = (
    "store_latents",
    "rotate_queries",
    "attention/latent_decode_attention",
    "attention/latent_prefill_attention",
    "attention/expanded_attention",
    "attention/multi_query",
)
"""Kernels that share a stage, since a call prints a line for each stage."""
MAX_TESTERS = 14
"""Processes that tests run in, side by side; each has half a gigabyte of the GPU's memory for itself alone."""


@dataclass(frozen=True)
class Stage:
    """A command of this Python's, which runs in a process of its own.

    `{work}` in the command is an empty directory, where the stage leaves `result`, JSON.
    """

    name: str
    command: tuple[str, ...]
    limit_s: float
    needs: tuple[str, ...] = ENGINE  # wheels, of `packages.WHEELS`
    programs: tuple[str, ...] = ()  # on the PATH
    result: str = ""


def _pytest(name: str, limit_s: float, *tests: str, needs: tuple[str, ...] = ENGINE) -> Stage:
    testers = min(MAX_TESTERS, os.cpu_count() or 1)
    side_by_side = ("-n", str(testers)) if find_spec("xdist") else ()  # they wait for the compiler, one thread each
    options = ("-c", os.devnull, "--rootdir", str(ROOT), "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestWarning")
    command = ("-m", "pytest", *options, "-q", "--tb=short", *side_by_side, *tests)
    return Stage(name, command, limit_s, needs, programs=("nvidia-smi",))  # by which tests see that there is a GPU


def _kernel_test(name: str) -> str:
    room, _, kernel = name.rpartition("/")
    return "/".join(part for part in ("tests/kernels", room, f"test_{kernel}.py") if part)


def _engine(name: str, shape: str, limit_s: float) -> Stage:
    command = (
        "-m",
        "benchmarks.engine",
        "--device",
        "cuda",
        "--shape",
        shape,
        "--profile",
        "--json",
        "{work}/result.json",
    )
    return Stage(name, command, limit_s, result="result.json")


def _golden(variant: str) -> str:
    return f"tests/engine/test_golden_cuda.py::test_every_architecture_gives_the_references_tokens[{variant}]"


BF16 = "tests/engine/test_golden_cuda.py::test_in_bf16_logits_are_as_close_to_the_exact_ones_as_transformers"

PART_ONE = (
    Stage("versions", ("-m", "benchmarks.gpu_hour.versions"), 20, needs=()),
    _engine("tiny", "tiny", 60),
    _pytest("golden", 60, _golden("llama"), _golden("qwen3"), BF16),
    _pytest("moves", 45, "-m", "gpu", "tests/engine/kv", "tests/engine/test_executor.py"),
    _engine(LARGE, LARGE, 115),
    *(_pytest(f"kernel-{Path(name).name}", limit_s, _kernel_test(name)) for name, limit_s in KERNELS.items()),
)
PART_TWO = (
    Stage(
        "handoff",
        ("-m", "benchmarks.transfer", "--device", "cuda", "--megabytes", "256", "--rounds", "3"),
        45,
        needs=HANDOFF,
    ),
    _pytest("system", 60, "tests/e2e/test_golden.py::test_the_gpus_path_gives_the_references_tokens", needs=SYSTEM),
    Stage(
        "memcheck",
        ("-m", "benchmarks.gpu_hour.small_kernels", "--memcheck", "--seconds", "50"),
        75,
        programs=("compute-sanitizer",),
    ),
    Stage("tune", ("-m", "benchmarks.kernels", "--tune", "--seconds", "75"), 95),
    Stage(
        "table",
        ("-m", "benchmarks.kernels", "--seconds", "75", "--json", "{work}/result.json"),
        90,
        result="result.json",
    ),
    _engine(f"{LARGE}-tuned", LARGE, 75),
    _engine(SMALL, SMALL, 45),
    _pytest("operators", 85, *(f"tests/engine/backends/{path}.py" for path in OPERATORS)),
)
PART_THREE = (
    _pytest(
        "architectures",
        185,
        *(
            "-m",
            "gpu",
            "tests/engine",
            "--ignore=tests/engine/adapters",  # they need PEFT, which is not among the wheels
            "--ignore=tests/engine/model/formats",  # so with the formats' own libraries: readers know no GPU
            "--ignore=tests/engine/model/gguf",
            "tests/benchmarks/limits/test_device_time.py",
            "tests/benchmarks/engine/test_idle.py",
        ),
    ),
    _pytest("quantized-weights", 100, *map(_kernel_test, QUANTIZED_KERNELS)),
    _pytest("quantized-rows", 80, *map(_kernel_test, QUANTIZED_ROWS)),
    _pytest(
        "quantized-kv",
        80,
        *map(_kernel_test, QUANTIZED_KV),
        "tests/engine/test_quantized_kv.py::test_triton_gives_the_tokens_too",
    ),
    _pytest("latents", 65, *map(_kernel_test, LATENT_KERNELS)),
    _pytest(
        "features", 60, *map(_kernel_test, (*ADJUSTING_KERNELS, *MIXTURE_KERNELS, *ADAPTER_KERNELS, *HANDOFF_KERNELS))
    ),
)
STAGES = (*PART_ONE, *PART_TWO, *PART_THREE)
