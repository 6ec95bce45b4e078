"""Sends legitimate traffic beside an attack: greedy requests whose answers are known, one after the other."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from contracts.errors import GatewayError
from tests.plain_http import PLAIN
from tests.waiting import DEADLINE_S

PROMPT_COUNT = 12
MAX_PROMPT_TOKENS = 200  # tokens of a prompt
NEW_TOKENS = 8
VOCABULARY_TOKENS = 256  # every model has as many
AT_ONCE = 2


class Traffic:
    """Counts the answers that are as they were before the attack. `wrong` says what was otherwise."""

    def __init__(self, client: httpx.AsyncClient, model: str, seed: int) -> None:
        chance = random.Random(seed)
        lengths = [chance.randrange(1, MAX_PROMPT_TOKENS) for _ in range(PROMPT_COUNT)]
        self._prompts = [[chance.randrange(VOCABULARY_TOKENS) for _ in range(length)] for length in lengths]
        self._client = client
        self._model = model
        self._known: list[str] = []
        self.right = self.all = 0
        self.wrong: list[str] = []

    async def learn(self) -> None:
        """Asks for all answers while nobody attacks. Raises `GatewayError` if there are none."""
        for prompt in self._prompts:
            answer, error = await self._answer(prompt)
            if error:
                raise GatewayError(f"a request failed before the attack: {error}")
            self._known.append(answer)

    async def go_on(self) -> None:
        """Sends requests without end, a few at once."""
        await asyncio.gather(*(self._one_after_the_other(start) for start in range(AT_ONCE)))

    async def _one_after_the_other(self, number: int) -> None:
        while True:
            place = number % PROMPT_COUNT
            answer, error = await self._answer(self._prompts[place])
            self.all += 1
            self.right += answer == self._known[place] and not error
            if error or answer != self._known[place]:
                self.wrong.append(error or f"prompt {place}: {answer!r}, not {self._known[place]!r}")
            number += AT_ONCE + 1

    async def _answer(self, prompt: list[int]) -> tuple[str, str]:
        """Returns the text and what went wrong; one of them is empty."""
        body: dict[str, Any] = {"model": self._model, "prompt": prompt, "max_tokens": NEW_TOKENS}
        try:
            answer = await self._client.post("/v1/completions", json={**body, "temperature": 0, "ignore_eos": True})
            return (str(answer.json()["choices"][0]["text"]), "") if answer.status_code == 200 else ("", answer.text)
        except (httpx.HTTPError, ValueError, LookupError) as error:
            return "", f"{type(error).__name__}: {error}"


@asynccontextmanager
async def traffic(url: str, seed: int) -> AsyncIterator[Traffic]:
    """Makes traffic whose answers are known; it goes on until the context ends."""
    async with httpx.AsyncClient(base_url=url, timeout=DEADLINE_S, verify=PLAIN) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        flow = Traffic(client, model, seed)
        await flow.learn()
        task = asyncio.create_task(flow.go_on())
        try:
            yield flow
        finally:
            task.cancel()
            await asyncio.wait([task])
