"""lm-eval over HTTP judges the model as it does when transformers computes it here."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.e2e.conftest import DEMO
from tests.e2e.harness.forks import ROOT
from tests.e2e.harness.system import System
from tests.waiting import LONG_DEADLINE_S

WINDOW_TOKENS = 256  # tokens of a window of the rolling perplexity


Run = tuple[str, list[str], dict[str, Any]]
"""lm-eval's kind of model, its tasks and the arguments of the model."""


def evaluated(*runs: Run) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.clients.evaluate", json.dumps(runs)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LONG_DEADLINE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def served(system: System, path: str, **more: Any) -> dict[str, Any]:
    return {"model": DEMO.name, "base_url": f"{system.gateway_url}/v1/{path}", "max_retries": 1, **more}


def test_accuracies_are_equal_and_perplexities_nearly(system: System) -> None:
    tasks = ["baton_choices", "baton_perplexity"]
    model = {"pretrained": str(DEMO), "dtype": "float32", "device": "cpu", "max_length": WINDOW_TOKENS}
    # Of a server's context lm-eval keeps one token for the answer, and of a window one more.
    arguments = served(system, "completions", tokenizer=str(DEMO), max_length=WINDOW_TOKENS + 2)
    here, there = evaluated(("hf", tasks, model), ("local-completions", tasks, arguments))
    for metric in ("acc,none", "acc_norm,none"):
        assert there["baton_choices"][metric] == here["baton_choices"][metric]
    for metric in ("word_perplexity,none", "byte_perplexity,none"):
        assert there["baton_perplexity"][metric] == pytest.approx(here["baton_perplexity"][metric], rel=1e-4)
    assert 0.1 < here["baton_choices"]["acc,none"] < 1, "a model that knows all, or nothing, compares nothing"


def test_a_generation_task_runs_over_chats(system: System) -> None:
    (found,) = evaluated(("local-chat-completions", ["baton_chat"], served(system, "chat/completions")))
    assert found["baton_chat"]["exact_match,sum"] >= 0.75
