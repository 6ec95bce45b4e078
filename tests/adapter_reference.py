"""The reference of adapters: PEFT's own, made and run by it."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model

from tests.reference import load_reference

ALL_LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def build_adapter(directory: Path, model: Path, seed: int = 1, **settings: Any) -> Path:
    """Saves a random adapter of the model in `model`, as PEFT makes it, with `LoraConfig`'s settings.

    Its weights are such that it changes the model's tokens, and leaves them apart.
    """
    torch.manual_seed(seed)
    given: dict[str, Any] = {"r": 8, "lora_alpha": 16, "target_modules": ALL_LINEARS, **settings}
    with _pefts_warnings():
        adapted = get_peft_model(load_reference(model), LoraConfig(**given, init_lora_weights=False))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.1)
    adapted.save_pretrained(str(directory))
    return directory


def adapted_by(adapter: Path) -> Callable[[Path], Any]:

    def load(directory: Path) -> Any:
        with _pefts_warnings():
            return PeftModel.from_pretrained(load_reference(directory), adapter).eval()

    return load


@contextmanager
def _pefts_warnings() -> Iterator[None]:
    """Lets PEFT ask transformers' models what they call deprecated."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        yield
