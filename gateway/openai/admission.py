"""Turns a parsed body into prompts that may be queued, or refuses it: lengths, limits, token ids, and room."""

import asyncio
import secrets
from collections.abc import Callable, Sized
from concurrent.futures import ThreadPoolExecutor

from core.config import GatewayConfig
from core.messages import Limits, Prompt, Sampling
from gateway.errors import APIError, invalid
from gateway.openai.schemas import ChatRequest, CompletionRequest, SamplingFields
from gateway.requests.sample import AdmittedPrompt
from gateway.requests.tenant import Tenants
from gateway.text.tokenizer import ModelTokenizer

COMPLETION_TOKENS = 16  # OpenAI's default limit for completions; chats may fill the context
PROMPTS = 128  # that one completion request may have
INLINE = 8192  # characters that are tokenized without leaving the event loop
RENDER_SECONDS = 10.0  # s in which a long prompt has to be rendered and tokenized
SEED_BITS = 63


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
        tenants: Tenants,
        in_progress: Sized,
        workers_context: Callable[[], int],
    ) -> None:
        self.tokenizer = tokenizer
        self._config = config
        self._model = model
        self._tenants = tenants
        self._in_progress = in_progress
        self._workers_context = workers_context
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="tokenizer")

    def context(self) -> int:
        """Returns the longest prompt + answer in tokens, or 0 if nothing limits it."""
        limits = (self._config.max_model_len, self.tokenizer.context, self._workers_context())
        return min((limit for limit in limits if limit), default=0)

    async def chat(self, body: ChatRequest, authorization: str = "") -> AdmittedPrompt:
        """Returns the prompt of a chat; `authorization` is the header's value, or empty. Raises `APIError`."""
        self._check(body, 1)
        template = self.tokenizer.template
        if template is None:
            raise invalid(f"{self._model} has no chat template; use /v1/completions", "messages", "no_chat_template")
        messages = [message.for_template() for message in body.messages]

        def tokenized() -> list[int]:
            return self.tokenizer.encode(template.render(messages), special=False)

        size = sum(len(message["content"]) for message in messages)
        prompt = await self._run(tokenized, size + 256 * len(messages), "messages")
        return self._admit(body, prompt, "messages", None, self._sampling(body), authorization)

    async def completion(self, body: CompletionRequest, authorization: str = "") -> list[AdmittedPrompt]:
        """Returns all its prompts; `authorization` is the header's value, or empty. Raises `APIError`."""
        prompts = body.prompts()
        if len(prompts) > PROMPTS:
            raise invalid(f"prompt: {len(prompts)} prompts are more than {PROMPTS}", "prompt")
        self._check(body, len(prompts))
        sampling = self._sampling(body)
        admitted = []
        for prompt in prompts:
            ids = self._known(prompt) if isinstance(prompt, list) else await self._text(prompt)
            admitted.append(self._admit(body, ids, "prompt", COMPLETION_TOKENS, sampling, authorization))
        return admitted

    def close(self) -> None:
        """Ends its threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _check(self, body: SamplingFields, prompts: int) -> None:
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
        if len(self._in_progress) + answers > most:
            message = f"{len(self._in_progress)} answers are in progress, and {most} are allowed"
            raise APIError(429, message, kind="rate_limit_error", code="rate_limit_exceeded", retry_after=1.0)

    def _known(self, ids: list[int]) -> list[int]:
        """Returns token ids from a client, all of them in the vocabulary."""
        size = self.tokenizer.vocabulary
        wrong = next((token for token in ids if not 0 <= token < size), None)
        if wrong is not None:
            raise invalid(f"prompt: token id {wrong} is outside the vocabulary of {size}", "prompt", "invalid_token_id")
        return ids

    async def _text(self, text: str) -> list[int]:
        return await self._run(lambda: self.tokenizer.encode(text, special=True), len(text), "prompt")

    async def _run(self, work: Callable[[], list[int]], size: int, param: str) -> list[int]:
        """Does `work` here for short texts, and for long ones on a thread within a deadline."""
        if size <= INLINE:
            return work()
        try:
            async with asyncio.timeout(RENDER_SECONDS):
                return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except TimeoutError:
            raise invalid(f"{param} could not be tokenized within {RENDER_SECONDS:g} s", param, "too_long") from None

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
        if len(prompt) >= context:
            message = f"the context is {context} tokens long, and {param} alone has {len(prompt)}"
            raise invalid(message, param, "context_length_exceeded")
        room = context - len(prompt)
        limit = body.limit()
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
