"""The split system over every way that KV can pass: right tokens, and all KV moved by the way that was asked for."""

from pathlib import Path

import pytest

from contracts.kv.spec import blocks_for
from tests.e2e.harness.golden import build_served_model, complete_all, references
from tests.e2e.harness.system import System
from tests.e2e.test_golden import block_bytes
from tests.reference import Golden

FP32 = ("--dtype", "fp32", "--kv-memory", "64MiB", "--max-batch-tokens", "56")
LENGTHS = [1, 16, 17, 64, 100, 255, 400, 513]
Served = tuple[Path, list[Golden]]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """A random model, and what it answers to some prompts."""
    model = build_served_model(tmp_path_factory.mktemp("model"), "llama")
    return model, references(model, LENGTHS, new_tokens=12)


@pytest.mark.parametrize(
    ("transport", "security", "words"),
    [
        ("tcp", "sealed", "over tcp, sealed"),
        ("ipc", "sealed", "over ipc, not sealed"),
        ("shm", "sealed", "over shm, not sealed"),
        ("pool", "sealed", "over pool, not sealed"),
        ("nixl", "sealed", "over nixl, not sealed"),
    ],
)
def test_every_transport_gives_the_references_tokens(
    tmp_path: Path, served: Served, transport: str, security: str, words: str
) -> None:
    model, runs = served
    worker = [*FP32, "--kv-transport", transport, "--kv-security", security]
    with System(tmp_path, model, worker=worker) as system:
        assert complete_all(system.gateway_url, runs) == [run.tokens for run in runs]
        decode = next(record for record in system.wait_until_idle() if record.role == "decode")
        assert decode.load.handoffs == len(runs) and decode.load.prompt_tokens == 0
        assert decode.load.handoff_bytes == block_bytes(system) * sum(blocks_for(len(run.prompt), 16) for run in runs)
        assert f"KV goes to decode worker {decode.epoch} {words}" in system.log()


@pytest.mark.parametrize(
    ("block_size", "transport", "security", "words"),
    [(8, "auto", "sealed", "over shm, not sealed"), (64, "tcp", "none", "over tcp, not sealed")],
)
def test_a_decode_worker_with_other_blocks_gives_the_references_tokens(
    tmp_path: Path, served: Served, block_size: int, transport: str, security: str, words: str
) -> None:
    """KV is converted on arrival; a second request finds whole blocks of its own there, and gets the rest.

    It comes in the two other ways, whose bytes are those of the ways above: as we choose, and by TCP as it is.
    """
    model, runs = served
    worker = [*FP32, "--kv-transport", transport, "--kv-security", security]
    with System(tmp_path, model, worker=worker, decode_only=["--block-size", str(block_size)]) as system:
        for _ in range(2):
            assert complete_all(system.gateway_url, runs) == [run.tokens for run in runs]
        decode = next(record for record in system.wait_until_idle() if record.role == "decode")
        assert decode.load.handoffs == 2 * len(runs) and decode.load.prompt_tokens == 0
        once = block_bytes(system) * sum(blocks_for(len(run.prompt), 16) for run in runs)
        assert once < decode.load.handoff_bytes < 2 * once
        assert f"KV goes to decode worker {decode.epoch} {words}" in system.log()


@pytest.mark.parametrize("codec", ["int8", "fp8"])
def test_a_codec_moves_a_byte_for_each_value(tmp_path: Path, served: Served, codec: str) -> None:
    """What it does to the tokens is `benchmarks.kv_quality`'s to say."""
    model, runs = served
    with System(tmp_path, model, worker=[*FP32, "--kv-codec", codec]) as system:
        assert [len(tokens) for tokens in complete_all(system.gateway_url, runs)] == [len(run.tokens) for run in runs]
        decode = next(record for record in system.wait_until_idle() if record.role == "decode")
        plain = block_bytes(system) * sum(blocks_for(len(run.prompt), 16) for run in runs)
        assert decode.load.handoffs == len(runs) and decode.load.prompt_tokens == 0
        assert 0.25 < decode.load.handoff_bytes / plain < 0.27  # fp32, and a scale for each vector of a block


def test_a_decode_worker_of_another_format_takes_the_kv(tmp_path: Path, served: Served) -> None:
    """First tokens are the reference's; the others come from KV and weights that were rounded."""
    model, runs = served
    with System(tmp_path, model, worker=FP32, decode_only=["--dtype", "bf16"]) as system:
        tokens = complete_all(system.gateway_url, runs)
        assert [each[0] for each in tokens] == [run.tokens[0] for run in runs]
        decode = next(record for record in system.wait_until_idle() if record.role == "decode")
        assert decode.load.handoffs == len(runs) and decode.load.prompt_tokens == 0
