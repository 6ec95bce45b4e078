"""Every example of docs/api.md runs as it is written, and every endpoint has one.

An example is a block of bash or Python whose first line names the endpoints that it is about:
"```bash POST /tokenize, POST /detokenize". In bash, a status that is no success fails; in Python, the official clients'
packages are imported.
"""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import anthropic
import httpx
import openai
import pytest

from tests.adapter_reference import build_adapter
from tests.e2e.conftest import DEMO
from tests.e2e.harness.forks import ROOT
from tests.e2e.harness.system import System
from tests.plain_http import PLAIN
from tests.waiting import LONG_DEADLINE_S

BASE = "http://127.0.0.1:8000"  # where the page says that the gateway is
BLOCK = re.compile(r"^```(\w+)[ ]?([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# A pipe whose reader has enough ends its writer; all else that fails is an error.
PRELUDE = 'set -eu -o pipefail\ncurl() { command curl --silent --show-error --fail-with-body --max-time 60 "$@"; }\n'


class Example(NamedTuple):
    language: str
    endpoints: tuple[str, ...]
    code: str


def examples() -> list[Example]:
    page = (ROOT / "docs" / "api.md").read_text()
    return [
        Example(language, tuple(part.strip() for part in about.split(",") if part.strip()), code)
        for language, about, code in BLOCK.findall(page)
    ]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """The demo model by the name that `./baton up` gives it, and an adapter that may be loaded."""
    root = tmp_path_factory.mktemp("adapters")
    build_adapter(root / "law", DEMO)
    loading = ("--lora-root", str(root), "--allow-lora-loading")
    worker = ("--dtype", "fp32", "--kv-memory", "64MiB", "--max-loras", "1", *loading)
    gateway = ("--served-model-name", "baton-demo", *loading)
    with System(tmp_path_factory.mktemp("page"), DEMO, worker=worker, gateway=gateway) as running:
        yield running


def endpoints_of(system: System) -> set[str]:
    paths = httpx.get(f"{system.gateway_url}/openapi.json", verify=PLAIN).json()["paths"]
    return {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}


def examples_of(kind: str) -> list[int]:
    """Returns the places of the examples on models of "chats", or of "texts": their vectors and scores."""
    found = [of_texts(example) for example in examples()]
    return [place for place, is_of_texts in enumerate(found) if is_of_texts == (kind == "texts")]


def of_texts(example: Example) -> bool:
    return any(re.search(r"embed|rerank|score", endpoint) for endpoint in example.endpoints)


def test_every_endpoint_has_an_example(demo: System) -> None:
    shown = {endpoint for place in examples_of("chats") for endpoint in examples()[place].endpoints}
    assert shown == endpoints_of(demo)


@pytest.mark.parametrize("number", examples_of("chats"))
def test_the_example_runs(demo: System, number: int, tmp_path: Path) -> None:
    assert_runs(demo, number, tmp_path)


def assert_runs(system: System, number: int, tmp_path: Path) -> None:
    example = examples()[number]
    code = example.code.replace(BASE, system.gateway_url)
    assert example.endpoints, f"it does not say which endpoints it is about: {code}"
    if example.language == "bash":
        done = subprocess.run(
            ["bash", "-c", PRELUDE + code], cwd=tmp_path, capture_output=True, text=True, timeout=LONG_DEADLINE_S
        )
        assert done.returncode == 0, f"{code}\n{done.stdout[-2000:]}\n{done.stderr}"
        return
    assert example.language == "python", f"nothing runs {example.language}"
    exec(compile(code, f"example {number} of docs/api.md", "exec"), {"openai": openai, "anthropic": anthropic})
