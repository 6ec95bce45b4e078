"""Speculation changes no answer of any kind: not by who guesses, not together, not when workers die in the midst."""

import asyncio
from functools import partial
from pathlib import Path

from tests.e2e.conftest import DEMO
from tests.e2e.harness.system import System
from tests.e2e.test_mixed import ASKED, answers, check_equal
from tests.waiting import wait_until

WORKER_OPTIONS = ("--dtype", "fp32", "--kv-memory", "64MiB")
GUESSING = [
    ("--speculation", "ngram", "--speculative-tokens", "4", "--speculative-answers", "4096"),
    ("--speculation", "draft", "--draft-model", str(DEMO.parent / "draft_weights")),
    ("--speculation", "medusa", "--medusa", str(DEMO.parent / "medusa")),
]
"""Of each further decode worker."""


def test_answers_of_every_kind_are_those_without_guesses(tmp_path: Path) -> None:
    with System(tmp_path, DEMO, prefill=1, decode=1, worker=WORKER_OPTIONS) as system:
        alone = asyncio.run(answers(system, 8))
        for number, options in enumerate(GUESSING, 1):
            system.start_worker(f"decode-{number}", *options)
        for number in range(1, 1 + len(GUESSING)):
            system.address(f"decode-{number}")
        wait_until(lambda: system.usable() == len(system.workers), "the gateway to know all workers")
        check_equal(asyncio.run(answers(system, len(ASKED), [partial(system.kill, "decode-0")])), alone)
        check_equal(asyncio.run(answers(system, len(ASKED))), alone)
        records = system.wait_until_idle()
        assert sum(record.load.speculation.accepted_tokens for record in records) > 0
