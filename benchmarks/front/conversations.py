"""Counts prompt tokens of conversations that are cached: `python -m benchmarks.front.conversations --url URL`.

Several conversations run at once; each prompt is the conversation so far, answers included, and a new message of random
tokens. Run it against a single decode worker and against pairs of workers, and compare. Prompts and answers are token
ids, so that no text is tokenized in another way.
"""

import asyncio
import random
import sys
from typing import Annotated, Any, NamedTuple

import httpx
from msgspec import Meta, Struct

from contracts.errors import BatonError, GatewayError
from contracts.kinds import Positive
from infra.cli import parse_or_exit
from infra.completions_client import error_message

REQUEST_TIMEOUT_S = 120.0  # s


class ConversationsConfig(Struct, frozen=True, kw_only=True):
    """Holds conversations with a running Baton, and prints the share of their prompts that was in the cache."""

    url: Annotated[str, Meta(description="URL of the gateway, without /v1")] = "http://127.0.0.1:8000"
    conversations: Annotated[Positive, Meta(description="conversations that are held at once")] = 8
    turns: Annotated[Positive, Meta(description="turns of each")] = 8
    first_tokens: Annotated[Positive, Meta(description="tokens of the first message")] = 64
    message_tokens: Annotated[Positive, Meta(description="tokens of each further message")] = 24
    output_tokens: Annotated[Positive, Meta(description="tokens of each answer")] = 24
    vocabulary: Annotated[Positive, Meta(description="messages are drawn from token ids below this")] = 4096
    seed: Annotated[int, Meta(ge=0, description="of all messages")] = 0


class Told(NamedTuple):
    """Sums over all turns, by the server's `usage`."""

    turns: int
    prompt: int  # tokens
    cached: int  # prompt tokens found in the cache


async def hold(client: httpx.AsyncClient, model: str, config: ConversationsConfig, number: int) -> Told:
    """One conversation. Raises `GatewayError` for anything but whole answers."""
    chance = random.Random(f"{config.seed} {number}")
    said: list[int] = []
    prompt = cached = 0
    for turn in range(config.turns):
        said += chance.choices(range(config.vocabulary), k=config.message_tokens if turn else config.first_tokens)
        body = {
            "model": model,
            "prompt": said,
            "max_tokens": config.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        answer = await client.post("/v1/completions", json=body)
        if answer.status_code != httpx.codes.OK:
            raise GatewayError(f"--url: {config.url}: {error_message(answer.content)}")
        told: dict[str, Any] = answer.json()
        prompt += told["usage"]["prompt_tokens"]
        cached += (told["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        said += told["choices"][0]["token_ids"]
    return Told(config.turns, prompt, cached)


async def talk_all(config: ConversationsConfig) -> Told:
    """All conversations at once. Raises `GatewayError`."""
    async with httpx.AsyncClient(base_url=config.url, timeout=REQUEST_TIMEOUT_S) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        told = await asyncio.gather(*(hold(client, model, config, at) for at in range(config.conversations)))
    return Told(*(sum(each) for each in zip(*told, strict=True)))


def talk(config: ConversationsConfig) -> Told:
    return asyncio.run(talk_all(config))


def main() -> int:
    config = parse_or_exit(ConversationsConfig, "benchmarks.front.conversations")
    try:
        told = talk(config)
    except (BatonError, httpx.HTTPError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    share = told.cached / told.prompt
    print(f"{told.turns} turns: {told.prompt} prompt tokens, {told.cached} of them found = {share:.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
