"""Code that comes with a model runs only where it is trusted; what it computes is looked at like any other."""

import json
from pathlib import Path

import pytest

from contracts.errors import ModelError
from tests.engine.drive import answers
from tests.engine.test_golden import make_engine, make_executor
from tests.engine.wrapped.models import WRAPPED
from tests.reference import build_model, golden, make_prompts

CODE = '''
import torch
from transformers import PreTrainedConfig, StableLmConfig, StableLmForCausalLM


class TellerConfig(StableLmConfig):
    model_type = "fortune_teller"


class Teller(StableLmForCausalLM):
    config_class = TellerConfig

    def __init__(self, config):
        super().__init__(config)
        if config.mixes:
            for layer in self.model.layers:
                layer.mlp.register_forward_pre_hook(mix)


def mix(module, given):
    """Adds a part of the token before, as models with short convolutions do."""
    states, = given
    return (states + 0.5 * torch.nn.functional.pad(states, (0, 0, 1, 0))[:, :-1],)
'''


@pytest.fixture
def teller(tmp_path: Path) -> Path:
    """A model of a type that transformers does not know, with the code that computes it."""
    directory = build_model(tmp_path / "teller", WRAPPED["stablelm"]())
    (directory / "teller.py").write_text(CODE)
    return directory


def describe(directory: Path, *, mixes: bool) -> None:
    config = json.loads((directory / "config.json").read_text())
    config |= {
        "model_type": "fortune_teller",
        "architectures": ["Teller"],
        "auto_map": {"AutoConfig": "teller.TellerConfig", "AutoModelForCausalLM": "teller.Teller"},
        "mixes": mixes,
    }
    (directory / "config.json").write_text(json.dumps(config))


def test_code_that_is_trusted_runs(teller: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    expected = golden(teller, make_prompts([3, 20, 33], 256), 6)
    describe(teller, mixes=False)
    with pytest.raises(ModelError, match=r"auto_map.*--trust-remote-code"):
        make_engine(teller)
    executor = make_executor(teller, trust_remote_code=True)
    assert executor.engine.model_config.architecture == "Teller"
    assert answers(executor, expected, chunk=13) == [each.tokens for each in expected]


def test_tokens_that_mix_outside_of_attention_are_seen(
    teller: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That state would be lost from step to step, and the text beside would get in."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    describe(teller, mixes=True)
    for dtype in ("fp32", "bf16"):
        with pytest.raises(ModelError, match="beside another text it gives other logits"):
            make_engine(teller, trust_remote_code=True, dtype=dtype)
