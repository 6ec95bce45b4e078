"""What a start measures, says and refuses before it serves."""

import logging
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from contracts.errors import ConfigError
from contracts.kv.spec import kv_bytes
from engine.executor import Executor
from engine.kv.spec import make_spec
from engine.model.config import ModelConfig, heads_of
from engine.plan import BlockMove
from engine.start import profiling
from engine.start.block_counts import PoolLoad
from engine.start.load import load_engine
from engine.start.profiling import (
    MAX_CPU_PROFILE_TOKENS,
    PLAIN_SAMPLING,
    fastest,
    first_step,
    largest_step,
    longer_step,
    out_and_in,
    prompts,
    widest_step,
)
from engine.start.sizing import blocks_that_fit, host_slots, refuse_impossible, step_tokens
from infra.config.engine import EngineConfig
from infra.sizes import format_bytes
from tests.engine.drive import run, start
from tests.engine.kv.test_pool import CONFIG
from tests.engine.test_golden import make_engine
from tests.reference import build_model, make_prompts
from tests.variants import VARIANTS

SPEC = make_spec(CONFIG, torch.float32, 8, "w")
BLOCK = SPEC.block_bytes()
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("sizing") / "model", VARIANTS["llama"]())


def settings(**changes: object) -> EngineConfig:
    return EngineConfig(**{"model": "m", **changes})  # type: ignore[arg-type]


# what is refused


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"block_size": 12}, r"--block-size: 12: .* 8, 16, 32, 64"),
        ({"kv_memory": 1 << 50}, r"--kv-memory: '1024.0TiB': only .*iB are free on this machine"),
        ({"host_kv_memory": 1 << 50}, r"--host-kv-memory: '1024.0TiB': only .*iB are free on this machine"),
        ({"host_kv_directory": "{there}"}, r"--host-kv-directory: '{there}': .*--host-kv-memory"),
        (
            {"host_kv_directory": "{there}/no", "host_kv_memory": 1 << 20},
            r"--host-kv-directory: '{there}/no': there is no such directory",
        ),
        (
            {"host_kv_directory": "/proc/self", "host_kv_memory": 1 << 20},
            r"--host-kv-directory: '/proc/self': no file can be made there: ",
        ),
        (
            {"host_kv_directory": "{there}", "host_kv_memory": 1 << 60},
            r"--host-kv-memory: '1048576.0TiB': only .*iB are free in {there}",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_loaded(
    changes: dict[str, object], sentence: str, tmp_path: Path
) -> None:
    filled = {
        key: value.replace("{there}", str(tmp_path)) if isinstance(value, str) else value
        for key, value in changes.items()
    }
    with pytest.raises(ConfigError, match="^" + sentence.replace("{there}", str(tmp_path))):
        refuse_impossible(settings(**filled), CPU)
    with pytest.raises(ConfigError):
        load_engine(settings(**filled, device="cpu"), lambda stage, percent: pytest.fail(f"began {stage}"))


def test_what_can_work_is_not_refused(tmp_path: Path) -> None:
    refuse_impossible(settings(), CPU)
    refuse_impossible(settings(kv_memory=1 << 20, host_kv_memory=1 << 20, host_kv_directory=str(tmp_path)), CPU)
    refuse_impossible(settings(kv_memory=1 << 50), torch.device("cuda", 0))
    assert list(tmp_path.iterdir()) == []


def test_the_host_tier_has_whole_blocks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("engine.start.sizing.available_memory", lambda: 10 * BLOCK)
    assert host_slots(settings(), SPEC, 0) == 0
    assert host_slots(settings(host_kv_memory=3 * BLOCK + 5), SPEC, 7 * BLOCK - 5) == 3
    with pytest.raises(ConfigError, match=r"--host-kv-memory: '1.5KiB': a KV block of 8 tokens takes 1.5KiB"):
        host_slots(settings(host_kv_memory=BLOCK - 1), SPEC, 0)
    beside = r"--host-kv-memory: '4.5KiB': only 3.0KiB are free on this machine beside the KV pool's 12.0KiB"
    with pytest.raises(ConfigError, match=beside):
        host_slots(settings(host_kv_memory=3 * BLOCK), SPEC, 8 * BLOCK)
    on_disk = settings(host_kv_memory=20 * BLOCK, host_kv_directory=str(tmp_path))
    assert host_slots(on_disk, SPEC, 8 * BLOCK) == 20, "a file takes no memory from the pool"


def test_a_pool_larger_than_what_the_weights_leave_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.start.sizing.available_memory", lambda: 2 << 20)
    with pytest.raises(ConfigError, match=r"--kv-memory: '4.0MiB': only 2.0MiB are free beside the weights"):
        blocks_that_fit(settings(kv_memory=4 << 20), SPEC, CPU, PoolLoad(64, in_flight=16))


def test_weights_larger_than_memory_are_refused_with_what_would_fit(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = sum(tensor.numel() for tensor in load_file(model / "model.safetensors").values())
    monkeypatch.setattr("engine.start.sizing.available_memory", lambda: 4 * values - 1)
    full, half = re.escape(format_bytes(4 * values)), re.escape(format_bytes(2 * values))
    takes = rf"^--model: '.*/model': its weights take {full} in fp32, and only .*iB are free on this machine"
    with pytest.raises(ConfigError, match=rf"{takes}; --dtype bf16 takes {half}$"):
        make_engine(model, kv_memory=0)
    assert make_engine(model, kv_memory=0, dtype="bf16").parameters == values
    monkeypatch.setattr("engine.start.sizing.available_memory", lambda: 2 * values - 1)
    with pytest.raises(ConfigError, match=rf"its weights take {half} in bf16, .*; --model: a smaller one may fit$"):
        make_engine(model, kv_memory=0, dtype="bf16")


# what is measured


def test_the_device_decides_how_much_a_step_takes_where_nobody_has(model: Path) -> None:
    assert step_tokens(settings(), torch.device("cuda", 1)) == 8192 and step_tokens(settings(), CPU) == 512
    assert {step_tokens(settings(max_batch_tokens=96), device) for device in (CPU, torch.device("cuda"))} == {96}
    assert make_engine(model).step_tokens == 512 and make_engine(model, max_batch_tokens=96).step_tokens == 96


def test_profiling_steps_are_bounded() -> None:
    config = settings(max_batch_tokens=100, max_sequences=3)
    assert largest_step(config, 40) == [40, 40, 20] and largest_step(config, 30) == [30, 30, 30]
    assert largest_step(config, 1000) == [100]
    assert widest_step(config) == [1] * min(config.max_sequences, 100)
    assert (first_step(config, 1000), first_step(config, 3)) == (profiling.FIRST_PROFILE_TOKENS, 3)
    assert (
        longer_step(config, 1000, 1e9) == 100
        and longer_step(settings(max_batch_tokens=512), 1000, 1e9) == MAX_CPU_PROFILE_TOKENS
    )
    assert longer_step(settings(max_batch_tokens=512), 1000, 4000.0) == int(4000 * profiling.MEASURING_S)
    plan, blocks = prompts([5, 16, 17], 8, 2, PLAIN_SAMPLING)
    assert [work.blocks for work in plan.works] == [([1],) * 2, ([2, 3],) * 2, ([4, 5, 6],) * 2] and blocks == 7
    assert [len(work.token_ids) for work in plan.works] == [5, 16, 17]


def test_blocks_that_are_moved_to_measure_come_back_to_where_they_were() -> None:
    there = [BlockMove("out", 0, 1, 0), BlockMove("out", 0, 2, 1)]
    back = [BlockMove("in", 0, 0, 1), BlockMove("in", 0, 1, 2)]
    assert out_and_in(3, 9, 100) == there + back
    assert len(out_and_in(1000, 7, 100)) == 2 * 7
    assert len(out_and_in(1000, 1000, 1 << 20)) == 2 * 8
    assert len(out_and_in(1000, 1000, 1 << 30)) == 2


@pytest.mark.parametrize(("takes", "runs", "best"), [([0.3, 0.1, 0.05, 0.2], 4, 0.05), ([9.0, 7.0], 2, 7.0)])
def test_the_time_of_a_step_is_the_best_of_a_few_runs(
    takes: list[float], runs: int, best: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.start.profiling.MEASURING_S", 0.5)
    now = [0.0]
    left = list(takes)

    def work() -> None:
        now[0] += left.pop(0)

    assert fastest(work, lambda: now[0]) == pytest.approx(best)
    assert len(takes) - len(left) == runs


def test_a_start_measures_its_rates_and_leaves_nothing_behind(model: Path) -> None:
    engine, without = make_engine(model, host_kv_memory=1 << 20), make_engine(model)
    assert engine.rates.prompt_tokens_per_second > 1 and engine.rates.host_bytes_per_second > 1000
    assert not any(layer.any() for layer in engine.pool.layers)
    tier = engine.pool._tier
    assert tier is not None and not tier.get(range(engine.host_slots)).any()
    assert without.rates.host_bytes_per_second == 0 and without.host_slots == 0
    executor, plain, prompts = Executor(engine), Executor(without), make_prompts([20, 5], 320)
    assert run(executor, start(executor, prompts, 6), 6) == run(plain, start(plain, prompts, 6), 6)


# what is said


def test_the_record_and_the_log_say_what_memory_is_for(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "engine.start.load"):
        engine = make_engine(model, host_kv_memory=1 << 20, host_kv_directory=str(tmp_path))
    memory, config = engine.memory, engine.model_config
    heads = heads_of(config.layers[0])
    token = kv_bytes(1, 1, len(config.layers), heads.kv_heads, heads.head_dim, 4)
    assert memory.token_bytes == token
    assert memory.kv_pool_bytes == engine.pool.counts[0] * 16 * token <= 4 << 20
    assert memory.tokens == (engine.pool.counts[0] - 1) * 16
    assert memory.sequences == memory.tokens // 256
    assert memory.host_tier_bytes == engine.host_slots * 16 * token
    assert memory.prompt_tokens_per_second == engine.rates.prompt_tokens_per_second
    assert memory.host_bytes_per_second == engine.rates.host_bytes_per_second
    (line,) = [record.getMessage() for record in caplog.records if "KV pool" in record.getMessage()]
    said = [memory.weights_bytes, memory.kv_pool_bytes, memory.token_bytes, memory.host_tier_bytes]
    assert all(format_bytes(size) in line for size in said)
    assert f"for {memory.tokens} tokens or {memory.sequences} sequences of 256" in line
    assert f"{memory.prompt_tokens_per_second:.0f} prompt tokens/s" in line
    with caplog.at_level(logging.INFO, "engine.start.load"):
        make_engine(model)
    assert "no host tier" in caplog.text


def test_of_a_model_with_windows_it_says_what_each_group_has(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "engine.start.load"):
        engine = make_engine(build_model(tmp_path / "model", VARIANTS["qwen3-layer-types"]()), max_batch_tokens=32)
    memory, pool = engine.memory, engine.pool
    full, window = pool.spec.groups
    assert pool.counts[1] < pool.counts[0] and window.window == 9
    taken = sum(count * group.layers_bytes() for count, group in zip(pool.counts, (full, window), strict=True))
    assert memory.kv_pool_bytes == taken <= 4 << 20
    assert memory.tokens == 16 * (pool.counts[0] - 1) and memory.token_bytes == full.layers_bytes() // 16
    assert f"({pool.counts[0]} and {pool.counts[1]} blocks of 16 tokens, " in caplog.text


def test_what_windows_give_up_is_not_kept(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--host-kv-memory: '1.0MiB': all layers of this model see 13 tokens, and"):
        make_engine(build_model(tmp_path / "model", VARIANTS["mistral-window"]()), host_kv_memory=1 << 20)


@pytest.mark.parametrize("cpu_backend", ["native", "torch"])
@pytest.mark.parametrize("variant", ["llama", "llama-tied", "llama-biases", "qwen3"])
def test_weights_are_counted_as_they_are_held(variant: str, cpu_backend: str, tmp_path: Path) -> None:
    """A tied head is the embedding itself to PyTorch in fp32, and a packed copy of it to the native operators, whose
    panels these shapes fill. Qwen3's norms are held once for each head."""
    engine = make_engine(build_model(tmp_path / "model", VARIANTS[variant]()), cpu_backend=cpu_backend)
    config = engine.model_config
    assert isinstance(config, ModelConfig)
    heads = heads_of(config.layers[0])
    again = len(config.layers) * (heads.heads + heads.kv_heads - 2) * heads.head_dim if heads.norm == "head" else 0
    again += config.vocab_size * config.hidden_size if config.tied_head and cpu_backend == "native" else 0
    assert engine.memory.weights_bytes == 4 * (engine.parameters + again)
