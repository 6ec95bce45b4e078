"""A GGUF file gives the tokens of the numbers that its blocks stand for through the split system, over HTTP."""

import shutil
from pathlib import Path

from gguf import GGMLQuantizationType

from engine.backends.native.compiling import build as compiling
from tests.e2e.harness.golden import build_served_model, complete_all, references
from tests.e2e.harness.system import System
from tests.gguf_files import dequantized, write_gguf
from tests.waiting import wait_until

LENGTHS = [2, 9, 17, 33, 47]  # of prompts, in tokens: several chunks and blocks
TARGET = "-march=x86-64-v3" if "avx2" in compiling.processor().split() else "-march=native"
"""As a laptop compiles operators: for AVX2 and no more. A processor of another kind (arm) compiles them for itself."""
WORKER_OPTIONS = ("--dtype", "fp32", "--kv-memory", "8MiB", "--max-batch-tokens", "16", "--max-model-len", "256")


def kind_of(name: str) -> GGMLQuantizationType:
    """Gives the parts of a fused layer two types."""
    return GGMLQuantizationType.Q8_0 if "v_proj" in name else GGMLQuantizationType.Q4_0


def test_a_file_gives_the_tokens_of_its_dequantized_twin(tmp_path: Path) -> None:
    original = build_served_model(tmp_path / "original", "llama")
    file = write_gguf(original, tmp_path / "model.gguf", "llama", kind_of)
    runs = references(dequantized(original, tmp_path / "numbers", kind_of), LENGTHS, new_tokens=6)
    (tmp_path / "cache" / "baton").mkdir(parents=True)
    operators = Path(shutil.copy2(compiling.build((TARGET,)), tmp_path / "cache" / "baton"))  # else each start compiles
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache"), compiling.TARGET_VARIABLE: TARGET}
    with System(tmp_path, file, worker=WORKER_OPTIONS, environment=environment) as system:
        answers = complete_all(system.gateway_url, runs)
        wait_until(lambda: len(system.finished()) == len(runs), "the requests' records")
        assert answers == [run.tokens for run in runs]
        assert all(record.handoff_bytes and record.attempts == 1 for record in system.finished())
        assert all(str(operators) in Path(f"/proc/{each.pid}/maps").read_text() for each in system.workers.values())
