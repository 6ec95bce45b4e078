"""Has schemathesis ask a gateway for what its /openapi.json promises.

Every check of schemathesis is on: no 5xx, no answer outside its schema, nothing accepted that the schema forbids. Its
check that valid requests are answered is replaced by ours (`tests/fuzz/described.py`).
"""

import os
import subprocess
import sys
from pathlib import Path

from tests.e2e.harness.forks import ROOT
from tests.waiting import LONG_DEADLINE_S

OPENAI, OTHERS = "^/v1/(chat/)?completions", "^/v1/(messages|responses)"
PARTS = [  # of the search, each a process: schemathesis' own threads make Python's parser fail
    ["--include-path-regex", OPENAI],
    ["--include-path-regex", OTHERS],
    # Without other names of endpoints that are asked anyway.
    ["--exclude-path-regex", f"{OPENAI}|{OTHERS}|^/ready|^/v1/(de)?tokenize"],
]
CHECKS = ["--checks", "all", "--exclude-checks", "positive_data_acceptance"]


def asked(url: str, directory: Path, seed: int, examples: int) -> list[str]:
    """Returns what schemathesis says of the gateway at `url` where something is wrong; its files go to `directory`."""
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "--no-color", "run", f"{url}/openapi.json"),
        *(*CHECKS, "--seed", str(seed), "--max-examples", str(examples), "--generation-database", "none"),
        *("--request-timeout", f"{LONG_DEADLINE_S:g}", "--output-sanitize", "false", "--no-shrink"),
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
