"""Transfers, moves and steps on a simulated GPU: what touches the same block is in order, and nothing else waits."""

import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from transformers import LlamaConfig, PretrainedConfig, Qwen2Config

from contracts.kinds import Codec
from contracts.kv.spec import PayloadConversion, WireForm
from contracts.messages.sampling import Sampling
from engine.backends.base import Backend, StepSizes
from engine.backends.reference.backend import ReferenceBackend
from engine.backends.triton.backend import TritonBackend
from engine.engine import Engine
from engine.executor import Executor
from engine.kv.codec import bytes_of
from engine.kv.host.host_tier import HostTier
from engine.kv.pool import KVPool
from engine.plan import PENDING_TOKEN, BlockMove, StepPlan, Work
from engine.start.load import LoadedEngine
from engine.start.profiling import warm_up
from tests.engine.drive import GREEDY
from tests.engine.simulated_device import CUDA, SimulatedDevice
from tests.engine.simulated_torch import simulated_device
from tests.engine.test_golden import make_engine
from tests.reference import build_model
from tests.variants import SIZES

BLOCKS, SLOTS = 8, 4

pytestmark = pytest.mark.interpreted


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedEngine:
    """A model whose weights are there, with the GPU's operators."""
    return load(tmp_path_factory.mktemp("streams"), LlamaConfig(**{**SIZES, "num_hidden_layers": 2}))


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> LoadedEngine:
    """One whose second layer has a window, and so a KV group of its own."""
    sizes = {**SIZES, "num_hidden_layers": 2, "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}
    return load(tmp_path_factory.mktemp("windows"), Qwen2Config(**sizes))


def load(directory: Path, config: PretrainedConfig) -> LoadedEngine:
    model = build_model(directory / "model", config)
    return make_engine(
        model, cpu_backend="triton", decode_graphs="off", block_size=8, max_sequences=1, max_batch_tokens=8
    )


class Worker:
    """A worker's engine on the simulated device, and what its I/O thread does beside it."""

    def __init__(
        self,
        loaded: LoadedEngine,
        device: SimulatedDevice,
        make_backend: Callable[[torch.device, torch.dtype], Backend[Any, Any]] = TritonBackend,
        *,
        signals: bool = False,
    ) -> None:
        self.device = device
        config, spec = loaded.model_config, loaded.pool.spec
        backend = make_backend(CUDA, torch.float32)
        tier = HostTier(SLOTS, spec.groups[0], torch.device("cpu"))
        self.pool = KVPool(spec, [BLOCKS] * len(spec.groups), CUDA, backend.mover, backend.codec, tier)
        for number, group in enumerate(spec.groups):
            device.in_cells(self.pool.layers[group.layers[0]], group.block_bytes, f"the pool's group {number}")
        attention = backend.attention(config, self.pool.layers)
        decodes = None
        if not signals:
            layers, sizes = self.pool.layers, StepSizes(2)
            decodes = backend.decode_steps(loaded.model, config, layers, sizes, lambda stage, percent: None)
        self.engine = Engine(backend, loaded.model, config, self.pool, attention, backend.launch_depth, decodes, None)
        self.groups = range(len(spec.groups))
        self.executor = Executor(self.engine, (lambda plan, group, layer: None) if signals else None)
        self._step = 0

    def launch(self, *works: Work) -> None:
        before = self.device.waits
        tables = [tuple(map(self._in_group, self.groups, work.blocks * len(self.groups))) for work in works]
        own = [structs.replace(work, blocks=blocks) for work, blocks in zip(works, tables, strict=True)]
        self.executor.launch(StepPlan(self._step, own))
        assert self.device.waits == before, "the host waits for the device, or copies from memory that is not pinned"
        self._step += 1

    def read(self, blocks: Sequence[int], codec: Codec = "none") -> list[bytes]:
        begun = [self.pool.begin_read(group, layer, own, codec) for group, layer, own in self._places(blocks)]
        return [b"".join(views()) for views in begun]

    def land(self, blocks: Sequence[int], codec: Codec = "none") -> None:
        """The KV of whole blocks comes in, layer by layer."""
        spec = self.pool.spec
        for number, layer, own in self._places(blocks):
            group = spec.groups[number]
            if codec == "none":
                self.pool.write(number, layer, own, [bytes(len(own) * group.block_bytes)])
            else:
                form = WireForm(spec.dtype, group.block_tokens, codec)
                size = bytes_of(form, group.vectors, group.width(spec.dtype), group.parts)
                self.pool.convert(PayloadConversion(form, number, layer, own, 0, 0), [bytes(size * len(own))])

    def copy(self, source: int, target: int) -> None:
        """The moves of one block in all groups."""
        pairs = [self._in_group(group, [source, target]) for group in self.groups]
        self.executor.move([BlockMove("copy", group, *pair) for group, pair in enumerate(pairs)])

    def _places(self, blocks: Sequence[int]) -> list[tuple[int, int, list[int]]]:
        """Group, layer and blocks there of all layers."""
        groups = self.pool.spec.groups_of_layers()
        return [(group, layer, self._in_group(group, blocks)) for layer, group in enumerate(groups)]

    def _in_group(self, group: int, blocks: Sequence[int]) -> list[int]:
        """Returns a group's own blocks for these: in the second group they have the numbers of others in the first."""
        return [BLOCKS - block for block in blocks] if group else list(blocks)


def prompt(sequence: int, blocks: list[int], tokens: int, start: int = 0) -> Work:
    return Work(sequence, start, [1] * tokens, (blocks,), GREEDY)


def decode(sequence: int, blocks: list[int], start: int, token: int = 1) -> Work:
    return Work(sequence, start, [token], (blocks,), GREEDY)


def layers_leave_behind_their_step(worker: Worker) -> None:
    """Two steps are under way; what the first has filled leaves, as it is and encoded."""
    worker.launch(prompt(1, [1, 2], 9), prompt(2, [3], 3))
    worker.launch(prompt(1, [1, 2, 4], 8, 9))
    assert not worker.pool.ready(0, 0, [1])
    worker.read([1, 3])
    worker.read([2, 4], "fp8")
    worker.executor.collect()
    worker.executor.collect()


def landed_sequences_run(worker: Worker) -> None:
    """One after the other joins the batch; the first one's blocks are granted to another when it has ended."""
    worker.land([1, 2])
    worker.launch(decode(1, [1, 2], 10))
    worker.land([3, 4], "int8")
    worker.launch(decode(1, [1, 2], 11, PENDING_TOKEN), decode(2, [3, 4], 15))
    worker.executor.collect()
    worker.executor.collect()
    worker.land([2, 1])
    worker.launch(decode(2, [3, 4, 5], 16), decode(3, [2, 1], 9))
    worker.executor.collect()


def what_was_given_up_is_used_by_another(worker: Worker) -> None:
    """A handoff ends while its bytes are still landing; its blocks go to sequences that run, and to moves."""
    worker.launch(decode(1, [1], 6))
    worker.executor.collect()
    worker.land([2, 3])
    worker.launch(decode(1, [1], 7))
    worker.executor.collect()
    worker.launch(decode(1, [1, 2], 8))  # it grows into one of them
    worker.executor.collect()
    worker.land([4, 5], "fp8")
    worker.copy(1, 4)
    worker.land([6])
    worker.launch(prompt(2, [6], 2))
    worker.executor.collect()


def moved_blocks_make_room(worker: Worker) -> None:
    """What was moved away is written over at once, what has come back is read at once, in a step and by a transfer."""
    worker.launch(prompt(1, [1, 2], 9))
    worker.executor.collect()
    worker.executor.move([BlockMove("out", 0, 1, 0)])
    worker.land([1])
    worker.copy(2, 5)
    worker.land([2], "fp8")
    worker.executor.move([BlockMove("in", 0, 0, 6)])
    worker.read([6, 5])
    worker.launch(decode(1, [6, 5], 9), decode(2, [1, 2], 9))
    worker.executor.collect()


ASKING = Sampling(
    seed=0,
    temperature=0.0,
    repetition_penalty=1.2,
    frequency_penalty=0.5,
    logit_bias=((3, 1.0),),
    allowed_token_ids=tuple(range(300)),
    bad_words=((4,), (1, 5), (1, 1, 6)),
)


def penalized_texts_run_ahead(worker: Worker) -> None:
    """Counts follow tokens that the host does not know yet; a text that comes takes another one's row."""
    texts = [[1] * 9, [1] * 3]
    prompts, outputs, waiting = [9, 3], [0, 0], []

    def step(*members: int, pending: bool = False) -> None:
        works = []
        for each in members:
            text, index = texts[each], outputs[each]
            start = prompts[each] + index - 1 if index else 0
            ids = [PENDING_TOKEN] if pending else text[start:]
            blocks = ([[1, 2], [3]][each],)
            works.append(Work(each, start, ids, blocks, ASKING, (0,), index, text, prompts[each], (7,)))
            outputs[each] += 1
        worker.launch(*works)
        waiting.append(members)

    def collect() -> None:
        for each, tokens in zip(waiting.pop(0), worker.executor.collect().tokens, strict=True):
            texts[each] += tokens

    step(0)
    step(0, pending=True)
    collect()
    step(0, pending=True)
    collect()
    collect()
    step(0, 1)
    step(1, 0, pending=True)
    collect()
    step(1, 0, pending=True)
    collect()
    collect()


SCENES: dict[str, tuple[Callable[[Worker], None], bool]] = {
    "a prefill worker": (layers_leave_behind_their_step, True),
    "a decode worker": (landed_sequences_run, False),
    "handoffs that end early": (what_was_given_up_is_used_by_another, False),
    "moves": (moved_blocks_make_room, False),
    "penalties": (penalized_texts_run_ahead, False),
}


def races(loaded: LoadedEngine, name: str, forgotten: tuple[str, str] = ("", "")) -> list[str]:
    """What nothing puts in order in a scene, where a function leaves out a kind of wait."""
    scene, signals = SCENES[name]
    with simulated_device() as device:
        device.forgotten = forgotten
        worker = Worker(loaded, device, signals=signals)
        scene(worker)
    return device.races


def test_the_pool_of_a_warm_up_is_not_given_away_while_it_is_written(loaded: LoadedEngine) -> None:
    """A start drops it at once, with the last conversion still under way."""
    with simulated_device() as device:
        worker = Worker(loaded, device, ReferenceBackend, signals=True)
        warm_up(worker.engine)
        del worker
        gc.collect()
    assert device.races == []


@pytest.mark.parametrize("name", SCENES)
def test_nothing_races(name: str, loaded: LoadedEngine) -> None:
    assert races(loaded, name) == []


@pytest.mark.parametrize("name", [name for name in SCENES if name != "penalties"])
def test_nothing_races_in_any_group(name: str, windowed: LoadedEngine) -> None:
    assert races(windowed, name) == []


@pytest.mark.parametrize(
    ("name", "kind", "function", "found"),
    [
        ("a prefill worker", "wait_event", "begin_read", "is read by _move on stream 1"),
        ("a prefill worker", "synchronize", "views", "is read by numpy on host"),
        ("a prefill worker", "synchronize", "collect", "is read by tolist on host"),
        ("a decode worker", "wait_event", "__init__", "is written by _move on stream 1"),
        ("a decode worker", "wait_event", "begin_step", "is read by _attend_part on engine"),
        ("handoffs that end early", "wait_event", "begin_step", "is written by _rope_and_store on engine"),
        ("handoffs that end early", "wait_event", "begin_moves", "is written by _copy_words on engine"),
        ("moves", "wait_event", "_wait_for_moves", "is written by _move on stream 1"),
        ("moves", "wait_event", "write", "is written by _move on stream 1"),
        ("moves", "wait_event", "convert", "is written by index_put_ on stream 1"),
    ],
)
def test_a_wait_that_is_left_out_shows(name: str, kind: str, function: str, found: str, loaded: LoadedEngine) -> None:
    assert [race for race in races(loaded, name, (kind, function)) if found in race]


@pytest.mark.parametrize(
    ("name", "function"),
    [("a prefill worker", "begin_read"), ("a decode worker", "begin_step"), ("handoffs that end early", "begin_moves")],
)
def test_a_wait_that_is_left_out_shows_in_both_groups(name: str, function: str, windowed: LoadedEngine) -> None:
    found = races(windowed, name, ("wait_event", function))
    assert all(any(group in race for race in found) for group in ("group 0", "group 1"))


@pytest.mark.parametrize("model", ["loaded", "windowed"])
def test_a_step_waits_for_what_it_reads_and_not_for_other_handoffs(model: str, request: pytest.FixtureRequest) -> None:
    with simulated_device() as device:
        worker = Worker(request.getfixturevalue(model), device)
        engine, transfers = device.streams
        worker.land([1, 2])
        first = transfers.clock[transfers.name]
        worker.land([3, 4])
        worker.launch(decode(1, [1, 2], 9))
        assert engine.clock.get(transfers.name) == first
        worker.launch(decode(1, [1, 2], 10, PENDING_TOKEN), decode(2, [3, 4], 9))
        assert engine.clock.get(transfers.name) == transfers.clock[transfers.name]


@pytest.mark.parametrize("codec", ["none", "fp8"])
def test_the_host_waits_for_a_read_and_not_for_the_read_behind_it(codec: Codec, loaded: LoadedEngine) -> None:
    with simulated_device() as device:
        worker = Worker(loaded, device)
        _, transfers = device.streams
        worker.land([1, 2])
        first = worker.pool.begin_read(0, 0, [1], codec)
        done = transfers.clock[transfers.name]
        second = worker.pool.begin_read(0, 1, [2], codec)
        first()
        assert device.host[transfers.name] == done
        second()
        assert device.host[transfers.name] == transfers.clock[transfers.name]
    assert device.races == []


@pytest.mark.parametrize("codec", ["none", "fp8"])
@pytest.mark.parametrize("model", ["loaded", "windowed"])
def test_a_landing_waits_for_moves_of_its_own_blocks_and_not_for_steps(
    model: str, codec: Codec, request: pytest.FixtureRequest
) -> None:
    """A landing lasts as long as a step otherwise: moves are enqueued behind the launched steps."""
    with simulated_device() as device:
        worker = Worker(request.getfixturevalue(model), device)
        engine, transfers = device.streams
        worker.launch(decode(1, [1], 6))
        worker.copy(2, 5)
        worker.launch(decode(1, [1], 7, PENDING_TOKEN))
        start = transfers.clock.get(engine.name, 0)
        worker.land([6], codec)
        assert transfers.clock.get(engine.name, 0) == start
        for block in (2, 5):
            worker.copy(block, 7 - block)
            worker.land([block], codec)
            assert transfers.clock[engine.name] == engine.clock[engine.name]


@pytest.mark.parametrize(("signals", "events"), [(False, 1), (True, 3)])
def test_layers_are_recorded_for_those_who_read_them(signals: bool, events: int, loaded: LoadedEngine) -> None:
    """One event is the answer's; a decode worker's layers are read by nobody."""
    with simulated_device() as device:
        worker = Worker(loaded, device, signals=signals)
        before = device.recorded
        worker.launch(prompt(1, [1], 2))
        assert device.recorded - before == events
        worker.executor.collect()
