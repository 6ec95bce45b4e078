"""The GPU's path through the engine, in Triton's interpreter where there is no GPU: tokens equal transformers'."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import triton
from torch import Tensor
from transformers import LlamaConfig
from triton.runtime.build import compile_module_from_src
from triton.runtime.errors import OutOfResources

from contracts.errors import ConfigError, DeviceError
from engine.backends.choice import choose
from engine.backends.triton.graphs.decode_graphs import DecodeGraphs, ladder
from engine.backends.triton.graphs.decode_inputs import NOT_PENDING, PADDING_SLOT, DecodeInputs, DeviceTables
from engine.device import device_errors
from engine.executor import Executor
from engine.model.batch import Sampled
from engine.model.checkpoint.read_config import read_config
from engine.plan import PENDING_TOKEN, Proposal, StepPlan, StepResult, Work
from engine.start.profiling import warm_up
from infra.config.engine import EngineConfig
from launcher.devices.gpus import visible_gpus
from tests.engine.drive import GREEDY, answers
from tests.engine.test_golden import make_executor
from tests.reference import build_model, golden, make_prompts
from tests.variants import SIZES, VARIANTS

CPU = torch.device("cpu")
DEVICE = "cuda" if visible_gpus() else "cpu"
NEW_TOKENS = 3
OVERWRITTEN = -1
"""Put over a block table: what is sent again shows."""


def make(directory: Path, **changes: object) -> Executor:
    settings: dict[str, object] = {f"{DEVICE}_backend": "triton", "max_sequences": 4, "max_batch_tokens": 64}
    return make_executor(directory, device=DEVICE, **{**settings, **changes})


@pytest.mark.parametrize(
    ("variant", "graphs"),
    [("qwen3", "on"), ("mistral-window", "off"), ("gemma2", "on"), ("gpt-oss", "on"), ("deepseek-v2", "on")],
)
def test_tokens_equal_the_references(
    variant: str, graphs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks beside decodes, steps of decodes only, padded and not, launched before the one before is collected.

    Sequences of more than 8 tokens are cut into pieces, shorter ones in the same step are not. Of latent
    attention the first step is in the expanded form, the second one absorbed.
    """
    monkeypatch.setattr("kernels.attention.split_kv.MIN_PART_TOKENS", 8)
    monkeypatch.setattr("engine.backends.triton.attention.latent_chunks.MIN_EXPANDED_QUERIES", 2)
    config = VARIANTS[variant]()
    config.num_hidden_layers, config.layer_types = 2, (getattr(config, "layer_types", None) or [])[:2] or None
    directory = build_model(tmp_path / variant, config)
    expected = golden(directory, make_prompts([2, 19, 21], config.vocab_size), NEW_TOKENS)
    executor = make(directory, decode_graphs=graphs)
    assert executor.engine.backend.name == "triton"
    assert answers(executor, expected, chunk=16, ahead=True) == [each.tokens for each in expected]


def _watched(executor: Executor) -> list[bool]:
    """Says of each step whether it was a recorded one, from now on."""
    served: list[bool] = []
    steps = executor.engine.decode_steps
    assert isinstance(steps, DecodeGraphs)
    serves = steps.serves

    def watched(plan: StepPlan) -> bool:
        served.append(serves(plan))
        return served[-1]

    steps.serves = watched  # type: ignore[method-assign]
    return served


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = VARIANTS["llama"]()
    config.num_hidden_layers = 2
    return build_model(tmp_path_factory.mktemp("triton") / "model", config)


def test_what_the_kernels_do_not_support_is_refused_at_load(tmp_path: Path) -> None:
    config = LlamaConfig(**{**SIZES, "head_dim": 24, "num_attention_heads": 2, "num_key_value_heads": 1})
    setting = f"--{DEVICE}-backend"
    why = "attention supports head sizes that are multiples of 16 up to 256, not 24; torch's operators support it"
    with pytest.raises(ConfigError, match=f"^{setting}: 'triton': {why}$"):
        make(build_model(tmp_path / "odd", config))


def test_a_cpu_has_only_the_interpreter(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(ConfigError, match="'triton': a CPU has only Triton's interpreter: set TRITON_INTERPRET=1"):
        make_executor(model, cpu_backend="triton")


def test_a_gpu_that_triton_does_not_start_on_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(triton.runtime, "driver", type(triton.runtime.driver)())  # it remembers what it has found
    settings = EngineConfig(model=str(model), device="cuda")
    why = "--cuda-backend: 'auto': Triton cannot start: 0 active drivers.*; torch's operators need no compiler"
    with pytest.raises(ConfigError, match=f"^{why}$"):
        choose(settings, torch.device("cuda"), torch.bfloat16, read_config(model, 256))


def test_missing_python_headers_are_one_sentence_with_the_packages_name(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton's own call of the real compiler, on a Python whose headers are elsewhere."""

    class Active:
        def get_current_target(self) -> None:
            compile_module_from_src("#include <Python.h>\n", "no_headers")

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("sysconfig.get_paths", lambda scheme: {"include": "/no/include"})
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(triton.runtime, "driver", SimpleNamespace(active=Active()))
    settings = EngineConfig(model=str(model), device="cuda")
    headers = (
        r"Python's headers are not installed: there is no /no/include/Python\.h; Debian's package is"
        r" python3\.\d+-dev, Fedora's python3-devel"
    )
    why = f"--cuda-backend: 'auto': Triton cannot start: {headers}; torch's operators need neither"
    with pytest.raises(ConfigError, match=f"^{why}$"):
        choose(settings, torch.device("cuda"), torch.bfloat16, read_config(model, 256))
    with pytest.raises(DeviceError, match=f"^Triton cannot launch: {headers}$"), device_errors():
        Active().get_current_target()  # where only a later kernel's launcher is not in Triton's cache
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr("sysconfig.get_paths", lambda scheme: {"include": str(tmp_path)})
    with pytest.raises(DeviceError, match=r"^Triton cannot launch: \S+ ended with status 1, and says"), device_errors():
        compile_module_from_src("#error no\n", "broken")


@pytest.mark.parametrize("most", [1, 2, 3, 8, 100, 256, 257, 1000])
def test_the_ladder_ends_with_the_largest_batch_and_wastes_little(most: int) -> None:
    sizes = ladder(most)
    assert sizes == sorted(set(sizes)) and sizes[-1] == most
    for count in range(1, most + 1):
        size = next(size for size in sizes if size >= count)
        assert size <= max(2 * count, 1) and (count <= 16 or size <= 1.5 * count)


def test_tables_change_where_they_differ() -> None:
    tables = DeviceTables(2, 3, 4, CPU)
    tables.update([0, 1], [([5, 6], [1]), ([7], [2, 3])])
    grown = [7]
    tables.update([1, 0], [(grown, [2, 3]), ([5, 6, 8], [0, 4])])
    grown.append(9)  # a sequence's own list grows behind our back
    tables.update([0, 1, 2], [([1, 2], [0, 4]), (grown, [0, 3, 1]), ([3, 3, 3, 3], [9])])
    assert tables.tensor.tolist() == [
        [[1, 2, 8, 0], [7, 9, 0, 0], [3, 3, 3, 3]],
        [[0, 4, 0, 0], [0, 3, 1, 0], [9, 0, 0, 0]],
    ]
    tables.tensor[:] = OVERWRITTEN
    tables.update([0, 1], [(grown, [0, 4]), (grown, [0, 3, 2])])
    assert tables.tensor[0, 0, :2].tolist() == [7, 9]
    assert tables.tensor[0, 1].tolist() == tables.tensor[1, 0].tolist() == [OVERWRITTEN] * 4
    assert tables.tensor[1, 1].tolist() == [OVERWRITTEN, OVERWRITTEN, 2, OVERWRITTEN], "what is not new is not sent"


def test_a_sequence_that_ends_has_one_other_sent_again() -> None:
    inputs = DecodeInputs(4, 8, 16, CPU, 2, 1)
    works = [Work(number, 20, [number], ([number, 10 + number],), GREEDY) for number in (1, 2, 3, 4)]
    inputs.fill(works, 4, None)
    inputs.block_tables(4, 0).fill_(OVERWRITTEN)
    inputs.fill([works[0], works[2], works[3]], 4, None)  # the second has ended: the last one takes its row
    assert inputs.block_tables(4, 0)[:, :2].tolist() == [
        [OVERWRITTEN, OVERWRITTEN],
        [4, 14],
        [OVERWRITTEN, OVERWRITTEN],
        [OVERWRITTEN, OVERWRITTEN],
    ]
    assert inputs.token_ids(4).tolist() == [1, 4, 3, 0]
    assert inputs.slots(4, 0).tolist() == [11 * 16 + 4, 14 * 16 + 4, 13 * 16 + 4, PADDING_SLOT]
    assert inputs.order(3).tolist() == [0, 2, 1]
    late = Work(5, 20, [PENDING_TOKEN], ([5, 15],), GREEDY)
    inputs.fill([works[2], works[3], late], 4, Sampled(torch.tensor([70]), [late]))  # the first: a new one does
    assert inputs.block_tables(4, 0)[:, :2].tolist() == [
        [5, 15],
        [4, 14],
        [OVERWRITTEN, OVERWRITTEN],
        [OVERWRITTEN, OVERWRITTEN],
    ]
    assert inputs.token_ids(4).tolist() == [70, 4, 3, 0] and inputs.order(3).tolist() == [2, 1, 0]


@pytest.mark.parametrize("variant", ["gpt-oss", "deepseek-v2"])
def test_guesses_change_no_token(variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorded step has room for three of each sequence; some have fewer, others branch, and are not recorded."""
    monkeypatch.setattr("kernels.attention.split_kv.MIN_PART_TOKENS", 8)
    config = VARIANTS[variant]()
    config.num_hidden_layers, config.layer_types = 2, (getattr(config, "layer_types", None) or [])[:2] or None
    directory = build_model(tmp_path / variant, config)
    expected = golden(directory, make_prompts([5, 9], config.vocab_size), 8)
    executor = make(directory, speculation="ngram", speculative_tokens=3, max_sequences=2)
    served = _watched(executor)
    tables = [([1, 2, 3],) * len(executor.engine.pool.counts), ([4, 5, 6],) * len(executor.engine.pool.counts)]
    texts = [list(each.prompt) for each in expected]
    executor.launch(StepPlan(0, [Work(at, 0, text, tables[at], GREEDY) for at, text in enumerate(texts)]))
    for text, tokens in zip(texts, executor.collect().tokens, strict=True):
        text += tokens
    served.clear()
    for step, right in enumerate((2, 0, 1), 1):
        works = []
        for at, (text, known) in enumerate(zip(texts, expected, strict=True)):
            answer = known.tokens[len(text) - len(known.prompt) :]
            proposed = (*answer[:right], *[1] * (3 - at - right))
            parents: tuple[int, ...] = ()
            if step == 3:
                wrong = [token for token in range(300) if token != answer[0]]
                proposed, parents = (wrong[0], wrong[1], answer[0], answer[1]), (-1, -1, -1, 2)
            done = len(text) - len(known.prompt)
            ids = [text[-1], *proposed]
            work = Work(at, len(text) - 1, ids, tables[at], GREEDY, (0,), done, proposed=proposed, parents=parents)
            works.append(work)
        executor.launch(StepPlan(step, works))
        for text, tokens in zip(texts, executor.collect().tokens, strict=True):
            text += tokens
        assert served == [step < 3], "guesses that branch are not recorded"
        served.clear()
    for text, known in zip(texts, expected, strict=True):
        output = text[len(known.prompt) :]
        assert len(output) > 6 and output[:8] == known.tokens[: len(output)]


def test_a_proposer_reads_the_states_of_recorded_steps(model: Path) -> None:
    """With guesses and without, although the next step is launched before, and overwrites what a record returns."""
    prompts = make_prompts([5, 9], 320)
    tables = [([1, 2, 3],), ([4, 5, 6],)]
    found = []
    for graphs in ("on", "off"):
        engine = replace(
            make(model, speculation="ngram", speculative_tokens=3, max_sequences=2, decode_graphs=graphs).engine,
            launch_depth=2,
        )
        keeping = Keeping()
        executor = Executor(engine, proposer=keeping)
        if isinstance(engine.decode_steps, DecodeGraphs):
            _overwrite(engine.decode_steps)
        served = _watched(executor) if graphs == "on" else []
        executor.launch(StepPlan(0, [Work(at, 0, text, tables[at]) for at, text in enumerate(prompts)]))
        executor.collect()
        for step, guesses in enumerate([(), (7, 8), (9,)], 1):
            ids = [11 * step, *guesses]
            works = [
                Work(at, len(text), ids, tables[at], GREEDY, output_index=1, proposed=guesses, propose=1)
                for at, text in enumerate(prompts)
            ]
            executor.launch(StepPlan(step, works))
            if step > 1:
                executor.collect()
        executor.collect()
        assert served == ([True] * 4 if graphs == "on" else [])
        found.append(keeping.heard)
    for recorded, eager in zip(*found, strict=True):
        torch.testing.assert_close(recorded, eager)


class Keeping:
    """Keeps the states that a proposer is told."""

    def __init__(self) -> None:
        self.heard: list[Tensor] = []

    def propose(self, plan: StepPlan, result: StepResult, hidden: Tensor) -> dict[int, Proposal]:
        self.heard.append(hidden.clone())
        return {}


def _overwrite(steps: DecodeGraphs) -> None:
    """Has all records return the same memory, as records on a device do."""
    memory: list[Tensor] = []

    def run(step: Callable[[], Tensor]) -> Tensor:
        states = step()
        if not memory:
            memory.append(torch.zeros(64, states.shape[1]))
        memory[0][: len(states)] = states
        return memory[0][: len(states)]

    steps._replays = {key: partial(run, step) for key, step in steps._replays.items()}


def test_null_sequences_fill_the_rows_behind_the_last() -> None:
    inputs = DecodeInputs(4, 8, 16, CPU, 2, 1)
    inputs.fill([Work(1, 40, [7], ([1, 2, 3],), GREEDY), Work(2, 3, [8], ([4],), GREEDY)], 4, None)
    assert inputs.token_ids(4).tolist() == [7, 8, 0, 0]
    assert inputs.positions(4).tolist() == [40, 3, 0, 0]
    assert inputs.slots(4, 0).tolist() == [3 * 16 + 8, 4 * 16 + 3, PADDING_SLOT, PADDING_SLOT]
    assert inputs.kv_lengths(4).tolist() == [41, 4, 0, 0]
    inputs.fill([Work(2, 4, [9], ([4],), GREEDY)], 2, None)
    assert inputs.slots(2, 0).tolist() == [4 * 16 + 4, PADDING_SLOT] and inputs.kv_lengths(2).tolist() == [5, 0]


def test_before_the_first_step_all_rows_are_null_sequences() -> None:
    """A record runs once before it has inputs: it must not store anything."""
    inputs = DecodeInputs(3, 8, 16, CPU, 2, 1)
    assert inputs.slots(3, 0).tolist() == [PADDING_SLOT] * 3 and inputs.kv_lengths(3).tolist() == [0] * 3
    assert inputs.order(3).tolist() == [0] * 3


def test_the_kernels_are_warmed_up_without_a_trace(model: Path) -> None:
    engine = make(model, decode_graphs="off", max_sequences=1).engine
    warm_up(engine)
    assert not any(layer.any() for layer in engine.pool.layers)


def test_a_kernel_that_the_gpu_has_no_room_for_is_a_device_error(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OutOfResources(131072, 101376, "shared memory")

    engine = make(model, decode_graphs="off", max_sequences=1).engine
    monkeypatch.setattr(type(engine.backend.codec), "encode", refuse)
    if DEVICE == "cpu":
        monkeypatch.setattr(engine.pool, "read", refuse)  # a CPU's pool converts by PyTorch's operators
    with pytest.raises(DeviceError, match=r"shared memory, Required: 131072, .*; --cuda-backend torch needs no such"):
        warm_up(engine)


def test_sequences_have_room_for_their_guesses() -> None:
    """Rows are nobody's behind a sequence's own; logits are asked for of all that are somebody's, work after work."""
    inputs = DecodeInputs(4, 8, 16, CPU, 2, 1, each=3)
    guessing = Work(2, 14, [8, 5, 6], ([4, 7],), GREEDY, proposed=(5, 6))
    pending = Work(1, 40, [PENDING_TOKEN], ([1, 2, 3],), GREEDY)
    inputs.fill([pending, guessing], 3, Sampled(torch.tensor([70]), [pending]))
    assert inputs.token_ids(9).tolist() == [70, 0, 0, 8, 5, 6, 0, 0, 0]
    assert inputs.positions(9).tolist() == [40, 0, 0, 14, 15, 16, 0, 0, 0]
    assert inputs.slots(9, 0).tolist() == [56, *[PADDING_SLOT] * 2, 78, 79, 112, *[PADDING_SLOT] * 3]
    assert inputs.kv_lengths(3).tolist() == [41, 17, 0] and inputs.counts(3).tolist() == [1, 3, 0]
    assert inputs.order(9).tolist()[:4] == [0, 3, 4, 5]


def test_pending_tokens_are_those_of_the_step_before() -> None:
    inputs = DecodeInputs(4, 8, 16, CPU, 2, 1)
    works = [Work(1, 40, [PENDING_TOKEN], ([1, 2, 3],), GREEDY), Work(2, 3, [8], ([4],), GREEDY)]
    several = Work(3, 0, [1], ([5],), GREEDY, (0, 1))
    inputs.fill(works, 2, Sampled(torch.tensor([70, 71, 72]), [several, Work(1, 39, [6], ([1, 2, 3],), GREEDY)]))
    assert inputs.token_ids(2).tolist() == [72, 8]
    assert NOT_PENDING == -1  # no place of a sample
