"""Has schemathesis ask for what /openapi.json promises; as a command, against a system of its own and for long.

`python -m tests.fuzz.openapi` starts the demo model and asks it. Every check of schemathesis is on: no 5xx, no answer
outside its schema, nothing accepted that the schema forbids. In place of its check that valid requests are answered is
ours (`tests/fuzz/described.py`).
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from contracts.kinds import Positive
from infra.cli import parse_or_exit
from launcher.options import DEMO_MODEL
from tests.e2e.harness.forks import ROOT
from tests.e2e.harness.system import System

REQUEST_SECONDS = 120.0  # that one answer may take, on a machine that does other things
OPENAI, OTHERS = "^/v1/(chat/)?completions", "^/v1/(messages|responses)"
PARTS = [  # of the search, each a process: schemathesis' own threads make Python's parser fail
    ["--include-path-regex", OPENAI],
    ["--include-path-regex", OTHERS],
    # Without other names of endpoints that are asked anyway.
    ["--exclude-path-regex", f"{OPENAI}|{OTHERS}|^/ready|^/v1/(de)?tokenize"],
]
CHECKS = ["--checks", "all", "--exclude-checks", "positive_data_acceptance"]


class OpenAPIFuzzConfig(Struct, frozen=True, kw_only=True):
    """Asks a system of the demo model for what its /openapi.json promises, and prints what was not kept."""

    examples: Annotated[Positive, Meta(description="requests of each kind for each endpoint")] = 300
    seed: Annotated[int, Meta(ge=0, description="of everything that is random")] = 0
    model: Annotated[str, Meta(description="directory in Hugging Face format")] = DEMO_MODEL


def asked(url: str, directory: Path, seed: int, examples: int) -> list[str]:
    """Returns what schemathesis says of the gateway at `url` where something is wrong; its files go to `directory`."""
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "--no-color", "run", f"{url}/openapi.json"),
        *(*CHECKS, "--seed", str(seed), "--max-examples", str(examples), "--generation-database", "none"),
        *("--request-timeout", f"{REQUEST_SECONDS:g}", "--output-sanitize", "false", "--no-shrink"),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SCHEMATHESIS_HOOKS": "tests.fuzz.described"}
    running = []
    for number, part in enumerate(PARTS):
        folder = directory / f"part-{number}"
        folder.mkdir()
        output = (folder / "said").open("w+")
        running.append(
            (subprocess.Popen([*command, *part], cwd=folder, env=environment, stdout=output, stderr=output), output)
        )
    wrong = []
    for process, output in running:
        status = process.wait()
        output.seek(0)
        said = output.read()
        output.close()
        if status or "No operations" in said:
            wrong.append(said)
    return wrong


def main() -> int:
    """Returns the exit status: 0 if every promise was kept."""
    config = parse_or_exit(OpenAPIFuzzConfig, "tests.fuzz.openapi")
    with tempfile.TemporaryDirectory(prefix="baton-openapi-") as folder:
        directory = Path(folder)
        with System(directory, Path(config.model), worker=("--kv-memory", "64MiB")) as system:
            wrong = asked(system.gateway_url, directory, config.seed, config.examples)
    print("\n".join(wrong) or "every promise was kept")
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
