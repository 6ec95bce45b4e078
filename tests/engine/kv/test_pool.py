"""The pool's bytes: what the I/O thread reads and lands, and what the engine finds."""

import mmap
from pathlib import Path

import pytest
import torch

from contracts.errors import ConfigError, MessageError
from contracts.kv.spec import kv_bytes
from engine.backends.reference.codec import ReferenceCodec
from engine.backends.reference.mover import ReferenceMover
from engine.kv.pool import KVPool
from engine.kv.spec import make_spec
from engine.start.block_counts import PoolLoad, tokens_in
from engine.start.sizing import pool_blocks
from infra.config.engine import EngineConfig
from tests.engine.configs import dense
from tests.engine.drive import run, start
from tests.engine.test_golden import make_executor
from tests.reference import build_model, make_prompts
from tests.variants import VARIANTS

CONFIG = dense()


def make_pool(dtype: torch.dtype = torch.bfloat16, blocks: int = 12) -> KVPool:
    spec, mover, codec = make_spec(CONFIG, dtype, 8, "w"), ReferenceMover(), ReferenceCodec()
    pool = KVPool(spec, [blocks], torch.device("cpu"), mover, codec)
    for number, layer in enumerate(pool.layers):
        layer[1:] = torch.randn(layer[1:].shape, generator=torch.Generator().manual_seed(number)).to(dtype)
    return pool


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_is_read_lands_equal_in_other_blocks(dtype: torch.dtype) -> None:
    source, target = make_pool(dtype), make_pool(dtype)
    there, here = [3, 4, 5, 9, 2], [7, 1, 2, 3, 11]
    for layer in range(3):
        views = source.read(0, layer, there)
        assert [view.nbytes // source.spec.groups[0].block_bytes for view in views] == [3, 1, 1]
        payload = b"".join(views)
        cut: list[memoryview | bytes] = [payload[:5], memoryview(payload)[5:700], payload[700:]]
        before = target.layers[layer].clone()
        target.write(0, layer, here, cut)
        assert torch.equal(target.layers[layer][here], source.layers[layer][there])
        others = [block for block in range(12) if block not in here]
        assert torch.equal(target.layers[layer][others], before[others])


def test_reading_copies_nothing_and_starts_at_a_page() -> None:
    pool = make_pool()
    view = pool.read(0, 1, [4])[0]
    pool.layers[1][4] = 1.0
    assert torch.frombuffer(view, dtype=torch.bfloat16).eq(1.0).all()
    assert pool.layers[0].data_ptr() % mmap.PAGESIZE == 0


def test_a_payload_of_the_wrong_size_is_refused() -> None:
    pool = make_pool()
    size = pool.spec.groups[0].block_bytes
    for wrong in (size - 1, size + 1, 0):
        with pytest.raises(MessageError, match=f"{wrong} bytes for 1 blocks of {size}"):
            pool.write(0, 0, [3], [bytes(wrong)])


def test_the_fingerprint_tells_layouts_apart() -> None:
    specs = [make_spec(CONFIG, torch.float32, 8, "w"), make_spec(CONFIG, torch.float32, 16, "w")]
    specs += [make_spec(CONFIG, torch.bfloat16, 8, "w"), make_spec(CONFIG, torch.float16, 8, "w")]
    specs += [make_spec(CONFIG, torch.float32, 8, "other weights")]
    assert len({spec.fingerprint() for spec in specs}) == len(specs)
    assert specs[0].block_bytes() == kv_bytes(1, 8, layers=3, kv_heads=2, head_dim=4, value_bytes=4) == 3 * 512
    assert specs[0].token_bytes() == kv_bytes(1, 1, layers=3, kv_heads=2, head_dim=4, value_bytes=4)


def test_the_budget_decides_the_size() -> None:
    spec = make_spec(CONFIG, torch.float32, 8, "w")
    one = spec.block_bytes()

    def blocks(kv_memory: int, spare: int = 0, asked: int = 64) -> int:
        config = EngineConfig(model="m", kv_memory=kv_memory, max_sequences=4, max_model_len=asked)
        (count,) = pool_blocks(config, spec, spare, PoolLoad(64, in_flight=16))
        return count

    assert blocks(20 * one + one // 2) == 20
    assert blocks(0, spare=15 * one) == 15
    assert blocks(1 << 30) == 4 * 8 + 1, "no more than all sequences could use"
    assert blocks(9 * one) == 9
    with pytest.raises(
        ConfigError, match=r"one sequence of 64 tokens needs 13.5KiB of.*--kv-memory.*--max-model-len to 56"
    ):
        blocks(9 * one - 1)
    assert blocks(9 * one - 1, asked=0) == 8, "nobody asked for 64 tokens: what fits is served"
    assert tokens_in(spec, (8,)) == 56
    with pytest.raises(ConfigError, match=r"--kv-memory: '3.0KiB': one KV block .* takes 512B in each of 3 layers"):
        blocks(2 * one - 1, asked=0)
    with pytest.raises(ConfigError, match=r"--kv-memory: 'auto': one KV block .* raise --kv-memory to 3.0KiB at least"):
        blocks(0, spare=one)


def test_moved_blocks_continue_to_the_same_tokens(tmp_path: Path) -> None:
    """The handoff without its network: prompt here, answer there, KV passed as bytes, layer by layer."""
    config = VARIANTS["qwen3"]()
    directory = build_model(tmp_path / "model", config)
    prompts = make_prompts([33, 48, 5], config.vocab_size)
    first, second = make_executor(directory), make_executor(directory)
    whole = run(first, start(first, prompts, 9), 9)
    assert first.engine.pool.spec.fingerprint() == second.engine.pool.spec.fingerprint()
    halves, others = start(first, prompts, 9), start(second, prompts, 9)
    run(first, halves, 1, chunk=64)
    for here, there in zip(halves, others, strict=True):
        for layer in range(config.num_hidden_layers):
            target, source = there.blocks[0][::-1], here.blocks[0][::-1]
            second.engine.pool.write(0, layer, target, first.engine.pool.read(0, layer, source))
        there.planned, there.text, there.asked = here.planned, list(here.text), here.asked
    assert run(second, others, 9) == whole
