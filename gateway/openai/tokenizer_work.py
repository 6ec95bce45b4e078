"""Runs the work of tokenizing prompts: short ones on the event loop, longer ones on threads, with a deadline."""

from collections.abc import Callable, Collection
from functools import partial
from typing import TypeVar

from msgspec import structs

from gateway.errors import invalid
from gateway.openai.context_window import too_long
from gateway.openai.fair_threads import FairThreads
from gateway.requests.sample import AdmittedPrompt
from gateway.text.tokenizer import TooManyTokens
from gateway.workers.prompt_keys import prompt_keys
from infra.fair_queueing.turns import TenantShare

INLINE_CHARACTERS = 1024  # longest text tokenized on the event loop, in half a millisecond
INLINE_HASHED_TOKENS = 4096  # most tokens hashed on the event loop, in a third of a millisecond
LONG_PROMPT_CHARACTERS = 65536  # from this length on a prompt waits in the queue of long prompts
TOKENIZER_THREADS = 2  # for long prompts, and as many for the others
RENDER_TIMEOUT_S = 10.0  # for a long prompt to be rendered and tokenized
T = TypeVar("T")


class TokenizerWork:
    """Tenants take turns on its threads. `context` returns the model's context in tokens, for refusals."""

    def __init__(self, context: Callable[[], int]) -> None:
        self._context = context
        self._threads = FairThreads(TOKENIZER_THREADS, "tokenizer")
        self._long = FairThreads(TOKENIZER_THREADS, "tokenizer of long prompts")

    async def run(self, work: Callable[[], T], size: int, param: str, share: TenantShare) -> T:
        """Runs `work` here for short prompts, and for longer prompts on a thread with a deadline. Raises `APIError`.

        `size` is the size of all prompts, in characters or ids. `TooManyTokens` becomes an error about `param`.
        """
        try:
            if size <= INLINE_CHARACTERS:
                return work()
            threads = self._threads if size <= LONG_PROMPT_CHARACTERS else self._long
            return await threads.run(work, share, size, RENDER_TIMEOUT_S)
        except TooManyTokens as error:
            raise too_long(param, self._context(), error.count, error.counted) from None
        except TimeoutError:
            raise invalid(f"{param} could not be tokenized within {RENDER_TIMEOUT_S:g} s", param, "too_long") from None

    async def with_keys(
        self, admitted: AdmittedPrompt, sizes: Collection[int], param: str, share: TenantShare
    ) -> AdmittedPrompt:
        """Adds the keys of the prompt's blocks, whose `sizes` are in tokens; none: no worker reports cached blocks."""
        prompt = admitted.prompt
        if not sizes:
            return admitted
        work, size = partial(prompt_keys, prompt, sizes), len(prompt.token_ids) * len(sizes)
        keys = work() if size <= INLINE_HASHED_TOKENS else await self.run(work, size, param, share)
        return structs.replace(admitted, keys=keys)

    def close(self) -> None:
        for threads in (self._threads, self._long):
            threads.close()
