"""Turns a parsed body into prompts that may be queued, or refuses it: lengths, limits, token ids, and room."""

import asyncio
import secrets
from collections.abc import Callable, Iterator, Sized
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from msgspec import structs

from core.config import GatewayConfig
from core.messages import Limits, Prompt, Sampling
from gateway.errors import APIError, invalid
from gateway.grammar.checks import GrammarChecks
from gateway.openai.admitted import Admitted
from gateway.openai.schemas import PROMPTS, ChatRequest, CompletionRequest, SamplingFields
from gateway.output.plain import PlainText
from gateway.requests.sample import AdmittedPrompt
from gateway.requests.tenant import Tenants
from gateway.text.chat import Chat
from gateway.text.tokenizer import ModelTokenizer, TooManyTokens

COMPLETION_TOKENS = 16  # OpenAI's default limit for completions; chats may fill the context
INLINE = 1024  # characters that are tokenized on the event loop, in half a millisecond
LONG = 65536  # characters from which a prompt waits for its turn among the long ones, not among the others
VALUES = 1 << 20  # that a body may have, whatever the context
FEW_VALUES = 1 << 16  # that a body may have which are no token ids, such as the parts of messages
AT_ONCE = 2  # prompts that are tokenized at once, of the long ones and of the others
RENDER_SECONDS = 10.0  # s in which a long prompt has to be rendered and tokenized
SEED_BITS = 63

T = TypeVar("T")


class Admission:
    """Checks requests and tokenizes them.

    The length of `in_progress` is the number of answers in progress. `workers_context` returns the shortest limit among
    the workers, in tokens, or 0 while there are none.
    """

    def __init__(
        self,
        config: GatewayConfig,
        model: str,
        tokenizer: ModelTokenizer,
        grammars: GrammarChecks,
        tenants: Tenants,
        in_progress: Sized,
        workers_context: Callable[[], int],
    ) -> None:
        self.tokenizer = tokenizer
        self.grammars = grammars
        self._config = config
        self._model = model
        self._tenants = tenants
        self._in_progress = in_progress
        self._workers_context = workers_context
        self._admitting = 0  # answers whose prompts are on their way through here
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="tokenizer")
        self._long = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="tokenizer of long prompts")

    def context(self) -> int:
        """Returns the longest prompt + answer in tokens, or 0 if nothing limits it."""
        limits = (self._config.max_model_len, self.tokenizer.context, self._workers_context())
        return min((limit for limit in limits if limit), default=0)

    def values(self) -> int:
        """Returns how many values the body of a request may have: the ids of all prompts, and a few more."""
        return min(VALUES, PROMPTS * self.context() + FEW_VALUES) if self.context() else VALUES

    async def chat(self, body: ChatRequest, authorization: str = "", cuts: bool = False) -> Admitted:
        """Returns what a chat asks for; `authorization` is the header's value, or empty. Raises `APIError`.

        With `cuts`, a limit of tokens that the context has no room for is cut down to that room, and not refused.
        """
        with self.room(body, 1):
            prompt = await self.chat_tokens(body, self._most())
            if cuts and (limit := body.limit()) and 0 < self.context() - len(prompt) < limit:
                body = structs.replace(body, max_tokens=None, max_completion_tokens=self.context() - len(prompt))
            admitted = self._admit(body, prompt, "messages", None, self._sampling(body), authorization)
            return Admitted([admitted], PlainText)

    async def chat_tokens(self, body: ChatRequest, most: int | None) -> list[int]:
        """Returns the tokens of a chat's prompt, `most` or fewer if it says so. Raises `APIError`."""
        if self.tokenizer.template is None:
            message = f"{self._model} has no chat template; use /v1/completions"
            raise invalid(message, "messages", "no_chat_template")
        chat = Chat([message.for_template() for message in body.messages])
        size = sum(map(len, chat.texts())) + 256 * len(chat.messages)
        return await self.tokenized(lambda: self.tokenizer.chat(chat, most), size, "messages")

    async def completion(self, body: CompletionRequest, authorization: str = "") -> Admitted:
        """Returns all its prompts; `authorization` is the header's value, or empty. Raises `APIError`."""
        prompts = body.prompts()
        with self.room(body, len(prompts)):
            sampling = self._sampling(body)

            most = self._most()

            def tokenized() -> list[list[int]]:
                return [
                    self._known(prompt, most)
                    if isinstance(prompt, list)
                    else self.tokenizer.encode(prompt, special=True, most=most)
                    for prompt in prompts
                ]

            admitted = [
                self._admit(body, ids, "prompt", COMPLETION_TOKENS, sampling, authorization)
                for ids in await self.tokenized(tokenized, sum(map(len, prompts)), "prompt")
            ]
            return Admitted(admitted, PlainText)

    async def tokenized(self, work: Callable[[], T], size: int, param: str) -> T:
        """Does `work` here for short prompts, and for longer ones on a thread within a deadline. Raises `APIError`.

        `size` is that of all prompts, in characters or ids. `TooManyTokens` is said to be about `param`.
        """
        try:
            if size <= INLINE:
                return work()
            threads = self._threads if size <= LONG else self._long
            async with asyncio.timeout(RENDER_SECONDS):
                return await asyncio.get_running_loop().run_in_executor(threads, work)
        except TooManyTokens as error:
            raise _too_long(param, self.context(), f"{'' if error.counted else 'at least '}{error.count}") from None
        except TimeoutError:
            raise invalid(f"{param} could not be tokenized within {RENDER_SECONDS:g} s", param, "too_long") from None

    async def close(self) -> None:
        """Ends its threads, and the processes that check grammars."""
        for threads in (self._threads, self._long):
            threads.shutdown(wait=False, cancel_futures=True)
        await self.grammars.close()

    @property
    def admitting(self) -> int:
        """Returns the number of answers whose prompts are being looked at."""
        return self._admitting

    @contextmanager
    def room(self, body: SamplingFields, prompts: int) -> Iterator[None]:
        """Checks what is known before a prompt is looked at, and keeps room for its answers meanwhile."""
        answers = self._check(body, prompts)
        self._admitting += answers
        try:
            yield
        finally:
            self._admitting -= answers

    def _check(self, body: SamplingFields, prompts: int) -> int:
        """Returns the number of answers that this asks for. Raises `APIError` if it cannot have them."""
        if body.model is not None and body.model != self._model:
            message = f"the model {body.model!r} does not exist; this server has {self._model!r}"
            raise APIError(404, message, param="model", code="model_not_found")
        if body.stream_options is not None and not body.stream:
            raise invalid("stream_options is only allowed when stream is true", "stream_options")
        if body.samples() > self._config.max_samples:
            raise invalid(f"n: {body.samples()} samples are more than {self._config.max_samples}", "n")
        answers, most = prompts * body.samples(), self._config.max_requests
        if answers > most:
            what = "n" if body.samples() > 1 else "prompt"
            raise invalid(f"{what}: this asks for {answers} answers, and {most} are allowed at a time", what)
        present = len(self._in_progress) + self._admitting
        if present + answers > most:
            message = f"{present} answers are in progress, and {most} are allowed"
            raise APIError(429, message, kind="rate_limit_error", code="rate_limit_exceeded", retry_after=1.0)
        return answers

    def _known(self, ids: list[int], most: int | None) -> list[int]:
        """Returns token ids from a client, few enough and all of them in the vocabulary."""
        size = self.tokenizer.vocabulary
        if most is not None and len(ids) > most:
            raise TooManyTokens(len(ids), counted=True)
        wrong = next((token for token in (min(ids, default=0), max(ids, default=0)) if not 0 <= token < size), None)
        if wrong is not None:
            raise invalid(f"prompt: token id {wrong} is outside the vocabulary of {size}", "prompt", "invalid_token_id")
        return ids

    def _most(self) -> int | None:
        """Returns how many tokens a prompt may have, None if nothing limits it."""
        return self.context() - 1 if self.context() else None

    def _admit(
        self,
        body: SamplingFields,
        prompt: list[int],
        param: str,
        default: int | None,
        sampling: Sampling,
        authorization: str,
    ) -> AdmittedPrompt:
        context = self.context() or len(prompt) + (1 << 20)
        if not prompt:
            raise invalid(f"{param} has no tokens", param, "empty_prompt")
        if len(prompt) >= context:  # a worker with a shorter one has come meanwhile
            raise _too_long(param, context, f"{len(prompt)}")
        room = context - len(prompt)
        limit = body.limit()
        if limit == 0:
            raise invalid("max_tokens is 0, and an answer has at least one token", "max_tokens")
        if limit is not None and limit > room:
            name = "max_tokens" if body.max_tokens is not None else "max_completion_tokens"
            message = f"the context is {context} tokens long; {param} has {len(prompt)} and {name} asks for {limit}"
            raise invalid(message, name, "context_length_exceeded")
        limits = Limits(limit or min(default or room, room), () if body.ignore_eos else self.tokenizer.stop_ids)
        salt = self._tenants.salt(authorization, body.cache_salt or "")
        whole = Prompt(prompt, len(prompt), salt, body.priority or 0)
        return AdmittedPrompt(whole, sampling, limits, body.stops(), body.samples())

    def _sampling(self, body: SamplingFields) -> Sampling:
        """Returns what the client says, else what the model's makers advise, else OpenAI's defaults; a seed always."""

        def pick(name: str, given: float | None, default: float) -> float:
            return given if given is not None else self.tokenizer.defaults.get(name, default)

        seed = secrets.randbits(SEED_BITS) if body.seed is None else body.seed & ((1 << SEED_BITS) - 1)
        return Sampling(
            seed=seed,
            temperature=float(pick("temperature", body.temperature, 1.0)),
            top_p=float(pick("top_p", body.top_p, 1.0)),
            top_k=max(0, int(pick("top_k", body.top_k, 0))),
            min_p=float(pick("min_p", body.min_p, 0.0)),
        )


def _too_long(param: str, context: int, tokens: str) -> APIError:
    message = f"the context is {context} tokens long, and {param} alone has {tokens}"
    return invalid(message, param, "context_length_exceeded")
