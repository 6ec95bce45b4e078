"""Penalties, biases and forbidden tokens through the split system: transformers' processors give the same tokens.

Also where sequences are preempted, and where a decode worker dies: what was counted is counted again elsewhere.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)

from tests.e2e.harness.deaths import death_midway
from tests.e2e.harness.golden import build_served_model, complete_all
from tests.e2e.harness.system import System
from tests.reference import Golden, golden, make_prompts
from tests.variants import VARIANTS

OUTPUT_TOKENS = 80
BLOCK_BYTES = 4 * 2 * 2 * 16 * 32 * 4  # bytes: layers x sides x KV heads x tokens x head size x fp32
POOL_BLOCKS = 40  # blocks of a worker: some of the sequences have to wait, some to give way
WORKER_OPTIONS = (
    *("--dtype", "fp32", "--max-batch-tokens", "56", "--max-model-len", "320"),
    *("--kv-memory", str(POOL_BLOCKS * BLOCK_BYTES)),
)
LENGTHS = [20, 130, 90, 60, 40, 100, 64, 16] * 2
END_TOKENS = (7, 19, 200)
BAD = [[5], [30], [12, 40], [60, 61, 62]]
BIASES = {3: 2.5, 77: -4.0, 250: 1.25}
FREQUENCY, PRESENCE, REPETITION = 0.7, 0.4, 1.3


def like_transformers(model: Path, prompts: list[list[int]]) -> tuple[list[Golden], dict[str, Any]]:
    """What its own processors give, and the request that asks for the same."""
    plain = golden(model, prompts[:4], 8)  # what would come is forbidden, so that it matters
    words = [*BAD, *([run.tokens[index]] for index, run in enumerate(plain)), *(run.tokens[4:6] for run in plain)]

    def process(prompt: list[int], output: list[int], logits: Tensor) -> Tensor:
        processors = LogitsProcessorList(
            [
                RepetitionPenaltyLogitsProcessor(REPETITION),
                MinNewTokensLengthLogitsProcessor(len(prompt), OUTPUT_TOKENS, list(END_TOKENS)),
            ]
        )
        logits = processors(torch.tensor([prompt + output]), logits)
        ids = torch.tensor([output], dtype=torch.long)  # a word that begins in the prompt is none of the output's
        found: Tensor = NoBadWordsLogitsProcessor(words)(ids, logits)
        return found

    asked = {
        "repetition_penalty": REPETITION,
        "bad_words": [" ".join(f"w{token}" for token in word) for word in words],
        "min_tokens": OUTPUT_TOKENS,
        "stop_token_ids": list(END_TOKENS),
    }
    return golden(model, prompts, OUTPUT_TOKENS, process), asked


def like_openai(model: Path, prompts: list[list[int]]) -> tuple[list[Golden], dict[str, Any]]:
    """What the formula of its documentation gives, and the request that asks for it."""

    def process(prompt: list[int], output: list[int], logits: Tensor) -> Tensor:
        for token, bias in BIASES.items():
            logits[0, token] += bias
        for token in {*output}:
            logits[0, token] -= output.count(token) * FREQUENCY + PRESENCE
        return logits

    biases = {str(token): bias for token, bias in BIASES.items()}
    asked = {"frequency_penalty": FREQUENCY, "presence_penalty": PRESENCE, "logit_bias": biases}
    return golden(model, prompts, OUTPUT_TOKENS, process), asked


def test_adjusted_tokens_are_those_of_the_processors(tmp_path: Path) -> None:
    model = build_served_model(tmp_path / "model", "llama")
    prompts = make_prompts(LENGTHS, VARIANTS["llama"]().vocab_size, seed=8)
    both = [ask(model, prompts) for ask in (like_transformers, like_openai)]
    with System(tmp_path, model, prefill=1, decode=2, worker=WORKER_OPTIONS) as system:
        for runs, asked in both:
            assert complete_all(system.gateway_url, runs, **asked) == [run.tokens for run in runs]
        records = system.wait_until_idle(60)
        assert sum(record.load.preemptions for record in records if record.role == "decode") > 0
        runs, asked = both[1]
        with death_midway(system):
            assert complete_all(system.gateway_url, runs, **asked) == [run.tokens for run in runs]
        assert system.retried() > 0
