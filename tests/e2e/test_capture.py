"""Whoever listens on the network between the services reads no prompt and no KV; with `--kv-security none`, KV only."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest
from tokenizers import Tokenizer

from contracts.kv.spec import WireForm
from contracts.messages.job import Prompt
from contracts.messages.packed_ids import packed
from contracts.messages.wire import encode
from engine.executor import Executor
from engine.start.load import load_engine
from infra.config.engine import EngineConfig
from tests.e2e.conftest import DEMO
from tests.e2e.harness.capture import captured, tcp_streams
from tests.e2e.harness.host import Host, namespace, need_root_and
from tests.e2e.harness.system import System
from tests.engine.drive import run, start
from tests.opens import open_of
from tests.plain_http import PLAIN
from tests.waiting import LONG_DEADLINE_S

PROMPT = (
    "My secret is a purple elephant named Gustav, who lives behind the seventh waterfall, eats nothing but yellow "
    "umbrellas, and plays the trombone at night for an audience of eleven owls and a retired submarine captain."
)
BLOCK_TOKENS = 16  # tokens
NEIGHBOURING_IDS = 6  # neighbouring token ids that no other text has
WINDOW_BYTES = 32  # bytes: eight values of fp32, which nobody else's are equal to
ENGINE = {"dtype": "fp32", "kv_memory": 8 << 20, "max_batch_tokens": 64}
OPTIONS = [f"--{name.replace('_', '-')}={value}" for name, value in ENGINE.items()]


@pytest.fixture(autouse=True)
def needs() -> None:
    need_root_and(ip="iproute2", tshark="tshark")


@pytest.fixture(scope="module")
def token_ids() -> list[int]:
    ids: list[int] = Tokenizer.from_file(str(DEMO / "tokenizer.json")).encode(PROMPT).ids
    assert len(ids) > 2 * BLOCK_TOKENS
    return ids


@pytest.fixture(scope="module")
def kv_windows(token_ids: list[int]) -> list[bytes]:
    """Pieces of the prompt's KV, of every layer and whole block, as the prefill worker computes it: bit for bit."""
    config = msgspec.convert({"model": str(DEMO), "device": "cpu", **ENGINE}, EngineConfig)
    executor = Executor(load_engine(config, lambda stage, percent: None))
    (sequence,) = running = start(executor, [token_ids], new_tokens=1)
    run(executor, running, new_tokens=1, chunk=len(token_ids))
    pieces = list(windows(executor, sequence.blocks[0][: len(token_ids) // BLOCK_TOKENS]))
    assert len(set(pieces)) == len(pieces)
    return pieces


def windows(executor: Executor, blocks: list[int]) -> Iterator[bytes]:
    """Thirteen of each layer's block: keys and values of every head are among them."""
    for layer in range(len(executor.engine.pool.layers)):
        for block in blocks:
            (view,) = executor.engine.pool.read(0, layer, [block])
            data = bytes(view)
            for at in range(0, len(data) - WINDOW_BYTES, len(data) // 13 & ~3):
                yield data[at : at + WINDOW_BYTES]


def id_runs(token_ids: list[int]) -> list[bytes]:
    words = [msgspec.msgpack.encode(token) for token in token_ids]
    return [b"".join(words[at : at + NEIGHBOURING_IDS]) for at in range(len(words) - NEIGHBOURING_IDS + 1)]


def packed_runs(token_ids: list[int]) -> list[bytes]:
    return [packed(token_ids[at : at + NEIGHBOURING_IDS]) for at in range(len(token_ids) - NEIGHBOURING_IDS + 1)]


def found(pieces: Iterable[bytes], streams: Iterable[bytes]) -> int:
    everything = b"\0".join(streams)
    return sum(piece in everything for piece in pieces)


@pytest.mark.parametrize("security", ["sealed", "none"])
def test_the_network_shows_no_prompt_and_kv_only_where_it_was_asked_to(
    tmp_path: Path, token_ids: list[int], kv_windows: list[bytes], security: str
) -> None:
    capture = tmp_path / "capture.pcap"
    worker = [*OPTIONS, "--kv-transport=tcp", f"--kv-security={security}"]
    with namespace("loopback") as host, captured(host, capture):
        with System(tmp_path, DEMO, worker=worker, host_of=lambda name: host) as system:
            answer = ask(host, system)
            moved = sum(record.load.handoff_bytes for record in system.wait_until_idle() if record.role == "decode")
        http = urlsplit(system.gateway_url).port
    assert answer["usage"]["prompt_tokens"] == len(token_ids)
    streams = tcp_streams(capture)
    clear = [data for ports, data in streams.items() if http in ports]
    between = [data for ports, data in streams.items() if http not in ports]
    assert found([PROMPT.encode()], clear) == 1  # the client's own way is clear text: the capture and the search work
    assert sum(map(len, between)) > moved > 0  # and all KV is in it
    seen = {
        "text": found([PROMPT.encode(), *(word.encode() for word in PROMPT.split() if len(word) > 6)], between),
        "token ids": found([*id_runs(token_ids), *packed_runs(token_ids)], between),
        "KV": found(kv_windows, between),
    }
    assert seen == {"text": 0, "token ids": 0, "KV": len(kv_windows) if security == "none" else 0}


def ask(host: Host, system: System) -> dict[str, dict[str, int]]:
    body = {"model": system.model.name, "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    with host.inside():
        answer = httpx.post(f"{system.gateway_url}/v1/completions", json=body, timeout=LONG_DEADLINE_S, verify=PLAIN)
    assert answer.status_code == 200, answer.text
    result: dict[str, dict[str, int]] = answer.json()
    return result


def test_the_search_finds_token_ids_in_a_message(token_ids: list[int]) -> None:
    message = open_of(
        sender="p",
        receiver="d",
        handoff=1,
        request="r",
        samples=(0,),
        attempt=0,
        gateway="g",
        prompt=Prompt(token_ids, len(token_ids)),
        remaining_ms=1.0,
        due_ms=0.5,
        fingerprint="",
        form=WireForm("fp32", BLOCK_TOKENS),
    )
    assert found(packed_runs(token_ids), [encode(message)]) == len(token_ids) - NEIGHBOURING_IDS + 1
    listed = encode(Prompt(token_ids, len(token_ids)))
    assert found(id_runs(token_ids), [listed]) == len(token_ids) - NEIGHBOURING_IDS + 1
