"""Our folder `kernels` beside transformers, which knows another package of that name, installed or not."""

import os
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest
from transformers.utils.import_utils import KERNELS_MIN_VERSION

from infra.process.hub_kernels import notice
from launcher import greeting
from launcher.options import ROOT, UpConfig

SENTENCE = (
    f"Hugging Face's package kernels {KERNELS_MIN_VERSION} is installed, but Baton's own folder of that name comes "
    "before it: transformers does without"
)
MODEL = """
import sys, torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig
config = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
AutoModelForCausalLM.from_config(config).save_pretrained(sys.argv[1])
assert AutoConfig.from_pretrained(sys.argv[1]).model_type == "llama"
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
with torch.inference_mode():
    assert model(torch.tensor([[1, 2, 3]])).logits.isfinite().all()
import kernels.tuning
print(kernels.__file__)
"""


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """Where a version of theirs that transformers would use is installed."""
    site = tmp_path / "site"
    (site / "kernels").mkdir(parents=True)
    (site / "kernels" / "__init__.py").write_text("")
    info = site / f"kernels-{KERNELS_MIN_VERSION}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: kernels\nVersion: {KERNELS_MIN_VERSION}\n")
    return site


def environment(site: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{site}"}


def test_transformers_runs_a_model_beside_theirs(theirs: Path, tmp_path: Path) -> None:
    """Without theirs, each test that compares to transformers does."""
    command = [sys.executable, "-c", MODEL, str(tmp_path / "model")]
    result = subprocess.run(command, cwd=ROOT, env=environment(theirs), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{ROOT / 'kernels' / '__init__.py'}\n"


def test_theirs_is_told_of_in_one_sentence(theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert notice() == ""
    monkeypatch.setattr(sys, "path", [*sys.path, str(theirs)])
    assert notice() == SENTENCE


def test_up_says_it_where_it_says_that_it_is_ready(theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def said() -> list[str]:
        return greeting.text(UpConfig(), "http://127.0.0.1:1", None, 1.0, Path("log")).splitlines()

    assert SENTENCE + "." not in said()
    monkeypatch.setattr(sys, "path", [*sys.path, str(theirs)])
    assert said().count(SENTENCE + ".") == 1


def test_a_worker_logs_it(theirs: Path, tmp_path: Path) -> None:
    """Before anything that can fail or wait: this worker is asked to stop while it waits for Redis."""
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text("0" * 64)
    options = ["--redis", "redis://127.0.0.1:1", "--model", "none", "--secret-file", str(secret)]
    command = [sys.executable, "-m", "decode_service", *options]
    with subprocess.Popen(command, cwd=ROOT, env=environment(theirs), stderr=subprocess.PIPE, text=True) as worker:
        assert worker.stderr is not None
        lines = list(takewhile(lambda line: "waits for it" not in line, worker.stderr))
        worker.terminate()
        lines += worker.stderr
    assert worker.returncode == 0
    assert sum(line.endswith(f"WARNING decode: {SENTENCE}\n") for line in lines) == 1, lines
