"""Tokens with adapters equal PEFT's, in fp32, on every backend; mixed batches equal each adapter alone."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from contracts.kinds import Quantization
from engine.executor import Executor
from engine.start.load import LoadedEngine, load_engine
from infra.config.engine import EngineConfig
from tests.adapter_reference import adapted_by, build_adapter
from tests.engine.drive import answers, run, start
from tests.engine.twins import dequantized_twin
from tests.engine.wrapped.models import WRAPPED
from tests.reference import Golden, build_model, golden, make_prompts
from tests.variants import VARIANTS

LENGTHS = [1, 7, 16, 33, 64]
MANY = [*LENGTHS, 3, 9, 20, 26, 41]
NEW_TOKENS = 10
BACKENDS = ("native", "torch")
ADAPTERS: dict[str, dict[str, Any]] = {
    "rank-4": {"r": 4},
    "rank-16-rslora": {"r": 16, "lora_alpha": 8, "use_rslora": True},
    "attention-only": {"target_modules": ["q_proj", "v_proj"], "r": 5},
    "patterns": {
        "rank_pattern": {"layers.1.mlp.up_proj": 3, r"model.layers.\d.self_attn.k_proj": 2},
        "alpha_pattern": {"o_proj": 3, "layers.2.mlp.down_proj": 24},
    },
    "one-layer": {"target_modules": ["gate_proj"], "layers_to_transform": [2]},
}


def adapted_engine(directory: Path, **changes: object) -> LoadedEngine:
    """An engine that takes adapters."""
    settings: dict[str, object] = dict(
        model=str(directory), device="cpu", dtype="fp32", kv_memory=4 << 20, max_model_len=256, allow_lora_loading=True
    )
    return load_engine(EngineConfig(**{**settings, **changes}), lambda stage, percent: None)  # type: ignore[arg-type]


def answers_of(engine: LoadedEngine, adapter: Path, expected: list[Golden]) -> list[list[int]]:
    """Answers all prompts together, each with the adapter."""
    assert engine.adapters is not None
    return answers(Executor(engine), expected, chunk=13, adapter=engine.adapters.load(adapter))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("adapted") / "llama", VARIANTS["llama"]())


@pytest.mark.parametrize("kind", ADAPTERS)
def test_an_adapter_gives_pefts_tokens(kind: str, llama: Path, tmp_path: Path) -> None:
    adapter = build_adapter(tmp_path / kind, llama, **ADAPTERS[kind])
    prompts = make_prompts(LENGTHS, 320)
    expected = golden(llama, prompts, NEW_TOKENS, load=adapted_by(adapter))
    assert [each.tokens for each in expected] != [each.tokens for each in golden(llama, prompts, NEW_TOKENS)]
    for backend in BACKENDS:
        engine = adapted_engine(llama, cpu_backend=backend)
        assert engine.backend.name == backend
        assert answers_of(engine, adapter, expected) == [each.tokens for each in expected], backend


def test_a_batch_of_three_adapters_and_none_gives_what_each_gives_alone(llama: Path, tmp_path: Path) -> None:
    """Joining one after the other, so that steps mix chunks of prompts and decodes of all of them."""
    prompts = make_prompts([*LENGTHS, 20, 50, 3], 320, seed=4)
    expected = {"": golden(llama, prompts, NEW_TOKENS)}
    directories = [build_adapter(tmp_path / f"{rank}", llama, seed=rank, r=rank) for rank in (2, 7, 16)]
    for directory in directories:
        expected[directory.name] = golden(llama, prompts, NEW_TOKENS, load=adapted_by(directory))
    for backend in BACKENDS:
        engine = adapted_engine(llama, cpu_backend=backend)
        assert engine.adapters is not None
        digests = {"": ""} | {directory.name: engine.adapters.load(directory) for directory in directories}
        mixed = [(name, run) for name, runs in expected.items() for run in runs]
        mixed = mixed[::3] + mixed[1::3] + mixed[2::3]
        executor = Executor(engine)
        own = [digests[name] for name, _ in mixed]
        running = start(executor, [run_.prompt for _, run_ in mixed], NEW_TOKENS, adapters=own, stagger=1)
        assert run(executor, running, NEW_TOKENS, chunk=13) == [run_.tokens for _, run_ in mixed], backend


@pytest.mark.parametrize("variant", ["glm4", "granite", "phi3", "gemma2", "qwen3-biases-tied"])
def test_adapters_follow_what_loading_does_to_weights(variant: str, tmp_path: Path) -> None:
    """Rows that are reordered for rope, products that are scaled, and those that are fused in the checkpoint."""
    model = build_model(tmp_path / "model", VARIANTS[variant]())
    adapter = build_adapter(tmp_path / "adapter", model, r=6, target_modules="all-linear")
    expected = golden(model, make_prompts([1, 7, 16, 33], 320), NEW_TOKENS, load=adapted_by(adapter))
    engine = adapted_engine(model)
    assert answers_of(engine, adapter, expected) == [each.tokens for each in expected]


@pytest.mark.parametrize(
    ("variant", "targets"),
    [
        ("gemma3-images", r".*language_model.*\.(q_proj|down_proj)"),
        ("mistral3-images", ["q_proj", "linear_1", "up_proj"]),  # some of them of the part that sees images
    ],
)
def test_an_adapter_of_a_model_that_sees_images_gives_pefts_tokens(
    variant: str, targets: str | list[str], tmp_path: Path
) -> None:
    """PEFT names its layers as the class does that it was made of, and not as the checkpoint."""
    model = build_model(tmp_path / "model", VARIANTS[variant]())
    patterns = {r"language_model.layers.1.mlp.\w+_proj": 3}
    adapter = build_adapter(tmp_path / "adapter", model, target_modules=targets, rank_pattern=patterns)
    names = load_file(adapter / "adapter_model.safetensors").keys()
    assert any(name.startswith("base_model.model.model.language_model.layers.") for name in names)
    assert any("vision_tower" in name for name in names) == isinstance(targets, list)
    expected = golden(model, make_prompts(MANY, 320), NEW_TOKENS, load=adapted_by(adapter))
    engine = adapted_engine(model)
    assert answers_of(engine, adapter, expected) == [each.tokens for each in expected]


def test_an_adapter_of_the_language_model_alone_fits_the_model_that_sees_images(tmp_path: Path) -> None:
    """Its layers have the same numbers, under another name."""
    model = build_model(tmp_path / "model", VARIANTS["gemma3-images"]())
    adapter = build_adapter(tmp_path / "adapter", model, target_modules=r".*language_model.*\.q_proj")
    engine = adapted_engine(model)
    assert engine.adapters is not None
    path = adapter / "adapter_model.safetensors"
    tensors = load_file(path)
    expected = golden(model, make_prompts(MANY, 320), NEW_TOKENS, load=adapted_by(adapter))
    save_file({name.replace(".language_model.", "."): tensor for name, tensor in tensors.items()}, path)
    assert answers_of(engine, adapter, expected) == [each.tokens for each in expected]


@pytest.mark.parametrize(
    ("kind", "form", "targets"),
    [
        ("gemma4", "none", r".*language_model.*\.(q_proj|down_proj)"),
        ("arcee", "int8", "all-linear"),
        ("granitemoe", "none", ["q_proj", "o_proj"]),
    ],
)
def test_an_adapter_of_what_transformers_computes_gives_pefts_tokens(
    kind: str, form: Quantization, targets: Any, tmp_path: Path
) -> None:
    """Every other sequence of a batch has it."""
    model = build_model(tmp_path / "model", WRAPPED[kind]())
    adapter = build_adapter(tmp_path / "adapter", model, target_modules=targets)
    base = model if form == "none" else dequantized_twin(model, tmp_path / "twin", form)
    prompts = make_prompts(LENGTHS, 256)
    with_it, without = golden(base, prompts, NEW_TOKENS, load=adapted_by(adapter)), golden(base, prompts, NEW_TOKENS)
    engine = adapted_engine(model, quantization=form)
    assert engine.adapters is not None
    digest, executor = engine.adapters.load(adapter), Executor(engine)
    mixed = [
        (own, run_) for pair in zip(with_it, without, strict=True) for own, run_ in zip((digest, ""), pair, strict=True)
    ]
    running = start(
        executor, [run_.prompt for _, run_ in mixed], NEW_TOKENS, adapters=[own for own, _ in mixed], stagger=1
    )
    assert run(executor, running, NEW_TOKENS, chunk=13) == [run_.tokens for _, run_ in mixed]


@pytest.mark.parametrize("form", ["int8", "int4", "fp8"])
def test_adapters_on_quantized_weights_give_pefts_tokens_on_the_dequantized_model(
    form: Quantization, llama: Path, tmp_path: Path
) -> None:
    """Serves them as QLoRA does: the base is rounded, what an adapter adds is not."""
    adapter = build_adapter(tmp_path / "adapter", llama, r=6, target_modules="all-linear")
    twin = dequantized_twin(llama, tmp_path / "twin", form)
    expected = golden(twin, make_prompts(LENGTHS, 320), NEW_TOKENS, load=adapted_by(adapter))
    for backend in BACKENDS:
        engine = adapted_engine(llama, cpu_backend=backend, quantization=form)
        assert answers_of(engine, adapter, expected) == [each.tokens for each in expected], backend


@pytest.mark.interpreted
def test_the_gpus_path_gives_pefts_tokens_in_recorded_and_in_mixed_steps(llama: Path, tmp_path: Path) -> None:
    """In Triton's interpreter. Sequences join one after the other: chunks of prompts beside decodes, then decodes."""
    adapters = [build_adapter(tmp_path / f"{rank}", llama, seed=rank, r=rank) for rank in (3, 16)]
    prompts = make_prompts([3, 9, 4], 320)
    loads: list[dict[str, Any]] = [{"load": adapted_by(adapters[0])}, {"load": adapted_by(adapters[1])}, {}]
    expected = [golden(llama, [prompt], 4, **load)[0] for prompt, load in zip(prompts, loads, strict=True)]
    engine = adapted_engine(llama, cpu_backend="triton", max_sequences=3, max_batch_tokens=16)
    assert engine.adapters is not None and engine.decode_steps is not None
    digests = [*map(engine.adapters.load, adapters), ""]
    executor = Executor(engine)
    running = start(executor, prompts, 4, adapters=digests, stagger=1)
    assert run(executor, running, 4, chunk=5) == [each.tokens for each in expected]
