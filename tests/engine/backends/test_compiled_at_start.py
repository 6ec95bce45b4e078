"""Nothing is compiled while requests wait: what steps and transfers launch was launched when the worker started."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import pytest
from msgspec import structs
from torch import Tensor
from transformers import LlamaConfig

from contracts.kinds import BlockSize, Codec
from contracts.kv.spec import PayloadConversion, WireForm, blocks_for
from contracts.messages.sampling import Sampling
from engine.backends.base import StepSizes
from engine.backends.triton.backend import TritonBackend
from engine.engine import Engine
from engine.executor import Executor
from engine.kv.host.host_tier import HostTier
from engine.kv.pool import KVPool
from engine.plan import BlockMove, PromptRows, StepPlan, Work
from engine.start.load import LoadedEngine
from engine.start.profiling import host_rate, prompt_steps
from infra.config.engine import EngineConfig
from kernels.sampling.sample import sample
from tests.engine.drive import GREEDY
from tests.engine.kv.peer_memory import shared_on_device
from tests.engine.simulated_device import CUDA
from tests.engine.simulated_torch import simulated_device
from tests.engine.specializations import specializations
from tests.engine.test_golden import make_engine
from tests.reference import build_model
from tests.variants import SIZES

pytestmark = pytest.mark.interpreted
BLOCK_TOKENS: BlockSize = 8
ROWS, STEP = 5, 64
MAX_PROMPT_TOKENS = 256
SAMPLINGS = [GREEDY, Sampling(seed=1), Sampling(seed=1, top_k=3, top_p=0.5), Sampling(seed=1, min_p=0.1)]
ASKED: list[dict[str, Any]] = [
    {"presence_penalty": 0.5},
    {"logit_bias": ((3, 1.5), (5, 1.0))},
    {"allowed_token_ids": (1, 2, 3)},
    {"logprobs": 5},
    {"bad_words": ((4,), (1, 1, 5)), "logprobs": 2},
]
SAMPLINGS += [structs.replace(each, **asked) for each in SAMPLINGS for asked in ASKED]
CODECS: tuple[Codec, ...] = get_args(Codec)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedEngine:
    directory = build_model(
        tmp_path_factory.mktemp("compiled") / "model", LlamaConfig(**{**SIZES, "num_hidden_layers": 2})
    )
    settings: dict[str, Any] = dict(block_size=BLOCK_TOKENS, max_sequences=1, max_batch_tokens=1, decode_graphs="off")
    settings["dtype"] = "fp16"  # logits that are adjusted are fp32, which samplers are compiled for besides
    return make_engine(directory, cpu_backend="triton", **settings)


class Start:
    """A worker's start on a simulated GPU, with a pool of so many blocks."""

    def __init__(self, loaded: LoadedEngine, blocks: int, slots: int) -> None:
        self._loaded = loaded
        self._backend = TritonBackend(CUDA, loaded.backend.dtype)
        config = EngineConfig(model="m", block_size=BLOCK_TOKENS, max_sequences=ROWS, max_batch_tokens=STEP)
        prompt_steps(config, MAX_PROMPT_TOKENS, CUDA, 1, self.engine)
        tier = HostTier(slots, loaded.pool.spec.groups[0], loaded.backend.device) if slots else None
        engine = self.engine([blocks], tier)
        host_rate(engine, slots)
        decodes = self._backend.decode_steps(
            loaded.model, engine.model_config, engine.pool.layers, StepSizes(ROWS), lambda stage, percent: None
        )
        for replay in decodes._replays.values():
            replay()  # a GPU runs each once before it records it
        self.executor = Executor(replace(engine, decode_steps=decodes))
        self.pool, self.slots = engine.pool, slots

    def engine(self, counts: Sequence[int], tier: HostTier | None = None) -> Engine:
        own, backend = self._loaded, self._backend
        config = structs.replace(own.model_config, max_model_len=MAX_PROMPT_TOKENS)
        pool = KVPool(own.pool.spec, counts, CUDA, backend.mover, backend.codec, tier)
        attention = backend.attention(config, pool.layers)
        return Engine(backend, own.model, config, pool, attention, backend.launch_depth, None, None)

    def step(
        self,
        *texts: tuple[int, int],
        sampling: Sampling = GREEDY,
        samples: tuple[int, ...] = (0,),
        prompt_rows: PromptRows | None = None,
    ) -> None:
        """A step of texts that have so many tokens in the pool, and so many new ones."""
        works = []
        for number, (start, new) in enumerate(texts):
            blocks = ([1] * blocks_for(start + new, BLOCK_TOKENS),)
            text = [1] * (start + new) if sampling.looks_back else None
            works.append(Work(number, start, [1] * new, blocks, sampling, samples, 0, text, start + new))
        works[0] = structs.replace(works[0], prompt_rows=prompt_rows)
        self.executor.launch(StepPlan(0, works))
        self.executor.collect()

    def transfer(self, layer: int, blocks: list[int]) -> None:
        """Blocks of a layer leave and land, as they are, by way of each codec, and from GPU to GPU."""
        self.pool.write(0, layer, blocks, self.pool.read(0, layer, blocks))
        for codec in CODECS:
            form = WireForm(self.pool.spec.dtype, BLOCK_TOKENS, codec)
            self.pool.convert(PayloadConversion(form, 0, layer, blocks, 0, 0), self.pool.read(0, layer, blocks, codec))
        devices = self.pool.devices
        assert devices is not None
        devices.opened(devices.offered(), self.pool.counts).write(0, layer, 1, blocks, [10, 12, 11][: len(blocks)])
        devices.landed(0, layer, 1, blocks)


def serve(worker: Start) -> None:
    """Has one of everything that requests may bring."""
    for sampling in SAMPLINGS:
        worker.step((0, 1), sampling=sampling)
        worker.step((0, 20), (0, 7), (0, 3), sampling=sampling, samples=(0, 1, 2))
        for rows in range(1, ROWS + 1):
            worker.step(*[(30 * row, 1) for row in range(1, rows + 1)], sampling=sampling)
        worker.step((200, 1), (9, 1), (0, 17), (40, 22), sampling=sampling)
    worker.step((MAX_PROMPT_TOKENS - 40, 40))
    for count in (1, 2, 7):
        worker.step((0, 20), (0, 7), prompt_rows=PromptRows(1, [1] * count, 3))
    for count in (1, 2, 3):
        last = range(1, count + 1)
        worker.executor.move([BlockMove("copy", 0, each, each + 4) for each in last])
        if worker.slots:
            worker.executor.move([BlockMove("out", 0, each, each - 1) for each in last])
            worker.executor.move([BlockMove("in", 0, each - 1, each + 8) for each in last])
        for layer in range(len(worker.executor.engine.model_config.layers)):
            worker.transfer(layer, list(last))
            worker.transfer(layer, [5, 2, 9][:count])


def first_tokens(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """Samples with kernels that do nothing: of the tokens, which would be whatever the memory held, all are 0."""
    tokens, finite = sample(*args, **kwargs)
    return tokens.zero_(), finite


@pytest.mark.parametrize("slots", [0, 4], ids=["no host tier", "host tier"])
@pytest.mark.parametrize("blocks", [48, 33])
def test_requests_launch_what_the_start_has_compiled(
    blocks: int, slots: int, loaded: LoadedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pool whose number of blocks is divisible by 16, and in one of another."""
    monkeypatch.setattr("engine.backends.triton.sampling.sampler.sample", first_tokens)
    with simulated_device(), shared_on_device(), specializations(run=False) as found:
        worker = Start(loaded, blocks, slots)
        at_start = set(found)
        serve(worker)
        assert len(at_start) > 15 and sorted(found - at_start) == []
