"""Golden tests through the whole system: text that names token ids, and many requests at once."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.plain_http import PLAIN
from tests.reference import Golden, build_model, golden, make_prompts
from tests.variants import VARIANTS
from tests.waiting import LONG_DEADLINE_S

LIMITS = httpx.Limits(max_connections=256)


def build_served_model(directory: Path, variant: str) -> Path:
    return build_served(directory, VARIANTS[variant]())


def build_served(directory: Path, config: Any) -> Path:
    """A random model whose tokenizer spells token 12 as `w12`, so that text says exactly which tokens came."""
    build_model(directory, config)
    tokenizer = Tokenizer(
        models.WordLevel({f"w{token}": token for token in range(config.get_text_config().vocab_size)}, unk_token="w0")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()

    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


def tokens_of(text: str) -> list[int]:
    return [int(word[1:]) for word in text.split()]


def references(directory: Path, lengths: Sequence[int], new_tokens: int, seed: int = 0) -> list[Golden]:
    """Greedy continuations of random prompts; see `tests.reference`."""
    return golden_runs(directory, make_prompts(lengths, VARIANTS["llama"]().vocab_size, seed), new_tokens)


def golden_runs(directory: Path, prompts: Sequence[list[int]], new_tokens: int) -> list[Golden]:
    torch.manual_seed(0)
    return golden(directory, prompts, new_tokens)


def complete_all(url: str, runs: Sequence[Golden], **extra: Any) -> list[list[int]]:

    async def one(client: httpx.AsyncClient, run: Golden) -> list[int]:
        body = {"prompt": run.prompt, "max_tokens": len(run.tokens), "temperature": 0, "ignore_eos": True, **extra}
        answer = await client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        data = answer.json()
        assert data["choices"][0]["finish_reason"] == "length"
        assert data["usage"]["completion_tokens"] == len(run.tokens)
        assert data["usage"]["prompt_tokens"] == len(run.prompt)
        return tokens_of(data["choices"][0]["text"])

    async def everything() -> list[list[int]]:
        async with httpx.AsyncClient(base_url=url, timeout=LONG_DEADLINE_S, limits=LIMITS, verify=PLAIN) as client:
            models_answer = await client.get("/v1/models")
            extra["model"] = models_answer.json()["data"][0]["id"]
            return await asyncio.gather(*(one(client, run) for run in runs))

    return asyncio.run(everything())
