"""Crowds of requests to a whole system, each of which knows what it has to be answered, or goes away in the middle."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import httpx

from tests.e2e.harness.golden import LIMITS, tokens_of
from tests.plain_http import PLAIN
from tests.reference import Golden

TIMEOUT = 120.0
SAMPLES = (1, 1, 1, 2, 3, 4)
LEAVES = 0.2  # of the clients
ECHOES = 0.1
CHUNKS = 12  # of a stream, at most, after which a client leaves
NEAR = 2e-3  # log-probabilities of two programs in fp32


class Known(NamedTuple):
    """Describes a request that a crowd may make: the model's name, the prompt with what follows, and its scores."""

    model: str
    run: Golden
    clear: int  # so many tokens that follow are compared: from there on another could be as good
    scores: list[float]  # the log-probability of each token but the first; none, if they are not to be compared


class Crowd:
    """Asks for known answers in random ways. `wrong` says what was answered otherwise, `seen` how requests ended."""

    def __init__(self, url: str, known: Sequence[Known], seed: str) -> None:
        self.seen: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._url = url
        self._known = known
        self._chance = random.Random(seed)

    async def ask(self, requests: int, at_once: int, at: Mapping[int, Callable[[], None]]) -> None:
        """Makes so many requests. What is in `at` is called when so many have ended."""
        room, ended = asyncio.Semaphore(at_once), 0
        draws = [random.Random(self._chance.random()) for _ in range(requests)]

        async def one(client: httpx.AsyncClient, draw: random.Random) -> None:
            nonlocal ended
            async with room:
                await self._one(client, draw)
            ended += 1
            if ended in at:
                await asyncio.to_thread(at[ended])

        async with httpx.AsyncClient(base_url=self._url, timeout=TIMEOUT, limits=LIMITS, verify=PLAIN) as client:
            await asyncio.gather(*(one(client, draw) for draw in draws))

    async def _one(self, client: httpx.AsyncClient, draw: random.Random) -> None:
        known = draw.choice(self._known)
        new = draw.randint(1, len(known.run.tokens))
        body: dict[str, Any] = {"model": known.model, "prompt": known.run.prompt, "max_tokens": new, "temperature": 0}
        body |= {"ignore_eos": True, "stream": True, "n": draw.choice(SAMPLES)}
        expected, compared = known.run.tokens[:new], known.clear
        if draw.random() < ECHOES:
            body |= {"echo": True, "logprobs": 1}
            expected, compared = known.run.prompt + expected, len(known.run.prompt) + known.clear
        leave = draw.randrange(CHUNKS) if draw.random() < LEAVES else -1
        name = f"{known.model}, {len(known.run.prompt)} tokens, {body['n']} x {new}, echo {'echo' in body}"
        try:
            texts, scores, done = await self._read(client, body, leave)
        except (httpx.HTTPError, ValueError, LookupError) as error:
            self.seen["broken"] += 1
            self.wrong.append(f"{name}: {type(error).__name__} {error}")
            return
        self.seen["answered" if done else "left"] += 1
        for index, text in texts.items():
            tokens = tokens_of(text.replace("w", " w"))  # an echo and an answer are joined without a space
            differ = [at for at, (a, b) in enumerate(zip(tokens[:compared], expected, strict=False)) if a != b]
            if differ or (done and len(tokens) != len(expected)):
                self.wrong.append(f"{name}, sample {index}: {len(tokens)} tokens, wrong at {differ[:1]}")
            told = scores[index][1:]
            if known.scores and not all(abs(a - b) < NEAR for a, b in zip(told, known.scores, strict=False)):
                self.wrong.append(f"{name}, sample {index}: scores are not the reference's")
            if done and "echo" in body and len(told) != len(expected) - 1:
                self.wrong.append(f"{name}, sample {index}: {len(told)} scores")
        if done and len(texts) != body["n"]:
            self.wrong.append(f"{name}: {len(texts)} samples")

    async def _read(
        self, client: httpx.AsyncClient, body: dict[str, Any], leave: int
    ) -> tuple[dict[int, str], dict[int, list[Any]], bool]:
        """Returns each sample's text and scores, and whether it was all read: a client that leaves reads less."""
        texts: dict[int, str] = {}
        scores: dict[int, list[Any]] = {}
        chunks = 0
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            if answer.status_code != httpx.codes.OK:
                raise ValueError((await answer.aread()).decode())
            async for line in answer.aiter_lines():
                data = line.removeprefix("data: ")
                if data == "[DONE]":
                    return texts, scores, True
                if not data:
                    continue
                event = json.loads(data)
                if "error" in event:
                    raise ValueError(data)
                for choice in event["choices"]:
                    texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
                    scores.setdefault(choice["index"], []).extend(
                        (choice.get("logprobs") or {}).get("token_logprobs", ())
                    )
                chunks += 1
                if chunks > leave >= 0:
                    return texts, scores, False
        raise ValueError("a stream without its end")
