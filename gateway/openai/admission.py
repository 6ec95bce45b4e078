"""Turns a parsed body into admitted prompts, or refuses it: checks lengths, limits, token ids, and capacity."""

from collections.abc import Collection, Iterator, Sequence, Sized
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from msgspec import structs

from contracts.messages.job import Prompt
from contracts.messages.sampling import Sampling, TokenIds
from contracts.pooling import Pooling
from gateway.errors import APIError, conflict, invalid, no_model, not_offered
from gateway.grammar.checks import GrammarChecks
from gateway.keys.caller import ANY_CALLER, Caller
from gateway.openai.admitted_request import AdmittedRequest
from gateway.openai.bodies.constraints import AnswerConstraints, size_of_tools
from gateway.openai.bodies.continuation import prompt_end
from gateway.openai.bodies.fitting import without_oldest
from gateway.openai.bodies.forms import form_of
from gateway.openai.bodies.messages import Message
from gateway.openai.bodies.nesting import values
from gateway.openai.bodies.sampling import bad_sequences, check_ids, check_prompt, limits_of, samples_of, sampling_of
from gateway.openai.bodies.schemas import ChatRequest, CompletionRequest, SamplingFields
from gateway.openai.bodies.template_options import template_options
from gateway.openai.bodies.tool_choice import custom_names_of, functions_of, no_tools, tool_use_of
from gateway.openai.context_window import ContextWindow
from gateway.openai.tokenizer_work import TokenizerWork
from gateway.output.answer_format import answer_format
from gateway.output.custom_calls import CustomCalls
from gateway.output.plain import PlainText
from gateway.requests.sample import AdmittedPrompt
from gateway.requests.tenant import Tenants
from gateway.requests.unloaded import UnloadedModel
from gateway.text.chat import Chat
from gateway.text.infill import Infill
from gateway.text.shown_tools import NOTHING_SHOWN
from gateway.text.stop import StopStrings
from gateway.text.tokenizer import ModelTokenizer, TooManyTokens
from gateway.workers.connection import WorkerConnection
from gateway.workers.directory import WorkerDirectory
from infra.config.gateway import GatewayConfig
from infra.fair_queueing.turns import TenantShare

COMPLETION_TOKENS = 16  # OpenAI's default limit for completions; chats may fill the context
MAX_ARGUMENT_VALUES = 8192  # JSON values in the arguments of all earlier calls
TAIL_TOKENS = 32  # at a prompt's end, which show whether thinking has begun


class OpenAnswers(Sized, Protocol):
    """The number of answers in progress or waiting."""

    def full(self) -> APIError:
        """Returns the error for a request beyond the allowed number."""


class PromptAdmission:
    """Checks requests and tokenizes them.

    The length of `in_progress` is the number of answers in progress or waiting. `workers` know their shortest context,
    their adapters, the sizes of their cached blocks, and how the model makes vectors or scores.
    """

    def __init__(
        self,
        config: GatewayConfig,
        names: Sequence[str],
        tokenizer: ModelTokenizer,
        grammars: GrammarChecks,
        tenants: Tenants,
        in_progress: OpenAnswers,
        workers: WorkerDirectory[WorkerConnection],
        unloaded: UnloadedModel,
    ) -> None:
        self.tokenizer = tokenizer
        self.grammars = grammars
        self._config = config
        shown = NOTHING_SHOWN if tokenizer.template is None else tokenizer.template.shown_tools()
        self._format = answer_format(shown, tokenizer.token_id, config.tool_parser, config.reasoning_parser)
        self._names = names
        self._model = names[0]
        self.window = ContextWindow((config.max_model_len, tokenizer.context), workers.context)
        self.work = TokenizerWork(self.window.tokens)
        self._constraints = AnswerConstraints(self._format, grammars, self.work.run)
        self._tenants = tenants
        self._in_progress = in_progress
        self._workers = workers
        self._unloaded = unloaded
        self.admitting = 0  # answers whose prompts are being checked

    async def chat(
        self, body: ChatRequest, caller: Caller = ANY_CALLER, clamps_limit: bool = False, drops_turns: bool = False
    ) -> AdmittedRequest:
        """Returns the admitted prompt of a chat. Raises `APIError`.

        With `clamps_limit`, a limit of output tokens beyond the context is reduced, not refused.
        With `drops_turns`, the oldest turns of a conversation beyond the context are left out.
        """
        await self.wait_for_model(caller)
        self._refuse_pooling("chats")
        with self.reserve_answers(body, 1):
            use, form = tool_use_of(body), form_of(body)
            prompt = await self.chat_tokens(
                body,
                self.window.max_prompt_tokens(body, drops_turns and not clamps_limit),
                caller.tenant_share,
                drops_turns,
            )
            prompt = self.window.truncated(body, prompt)
            left = self.window.tokens() - len(prompt)
            if clamps_limit and (limit := body.limit()) and 0 < left < limit:
                body = structs.replace(body, max_tokens=None, max_completion_tokens=left)
            tail = self._tail(prompt)
            grammar = await self._constraints.grammar(form, use, tail, caller.tenant_share)
            sampling = sampling_of(body, self.tokenizer, await self._bad_words(body, caller.tenant_share), grammar)
            markers = self._format.markers(use)
            admitted = self._admit(body, prompt, "messages", None, sampling, caller, markers)
            admitted = await self.with_keys(admitted, "messages", caller.tenant_share)
            if use is None and self._format.thinking is None:
                return AdmittedRequest([admitted], PlainText)
            parser, customs = partial(self._format.parser, tail, use), custom_names_of(body)
            return AdmittedRequest([admitted], (lambda: CustomCalls(parser(), customs)) if customs else parser)

    async def chat_tokens(
        self, body: ChatRequest, max_prompt_tokens: int | None, share: TenantShare, drops_turns: bool = False
    ) -> list[int]:
        """Returns the tokens of a chat's prompt, at most `max_prompt_tokens` of them if given. Raises `APIError`.

        With `drops_turns`, the oldest turns beyond `max_prompt_tokens` are left out.
        """
        if self.tokenizer.template is None:
            message = f"{self._model} has no chat template; use /v1/completions"
            raise invalid(message, "messages", "no_chat_template")
        functions = functions_of(body) if body.tool_choice != "none" and body.function_call != "none" else []
        if functions and self._format.tool_format is None:
            raise no_tools(body, self._model, self._config.tool_parser, self._format.takes_tools)
        size = sum(message.size() for message in body.messages) + size_of_tools(len(functions))
        answer, continues = prompt_end(body)

        def tokens_of(said: Sequence[Message]) -> list[int]:
            tools = [{"type": "function", "function": function.for_template()} for function in functions] or None
            messages = [message.for_template() for message in said]
            _check_arguments(messages)
            chat = Chat(messages, tools, template_options(body), answer, continues)
            return self.tokenizer.chat(chat, max_prompt_tokens)

        def tokenized() -> list[int]:
            return without_oldest(body.messages, tokens_of) if drops_turns else tokens_of(body.messages)

        return await self.work.run(tokenized, size, "messages", share)

    async def completion(
        self, body: CompletionRequest, caller: Caller = ANY_CALLER, default: int | None = COMPLETION_TOKENS
    ) -> AdmittedRequest:
        """Returns the admitted prompts of a completion. Raises `APIError`.

        `default` is the limit of output tokens of a body without one; None: the rest of the context.
        """
        prompts = body.prompts()
        await self.wait_for_model(caller)
        self._refuse_pooling("completions")
        with self.reserve_answers(body, len(prompts)):
            form, max_prompt_tokens = form_of(body), self.window.max_prompt_tokens(body)
            infill = self._infill(body)

            def tokenized() -> list[list[int]]:
                return [
                    self.checked_ids(prompt, max_prompt_tokens)
                    if isinstance(prompt, list)
                    else infill.tokens(prompt, body.suffix or "", max_prompt_tokens)
                    if infill is not None
                    else self.tokenizer.encode(prompt, special=True, max_tokens=max_prompt_tokens)
                    for prompt in prompts
                ]

            size = sum(map(len, prompts)) + len(body.suffix or "")
            tokens = await self.work.run(tokenized, size, "prompt", caller.tenant_share)
            grammar = await self._constraints.grammar(form, share=caller.tenant_share)
            sampling = sampling_of(body, self.tokenizer, await self._bad_words(body, caller.tenant_share), grammar)
            default = 1 if body.only_echo() else default
            left = [self.window.truncated(body, ids) for ids in tokens]
            admitted = [self._admit(body, ids, "prompt", default, sampling, caller) for ids in left]
            return AdmittedRequest(
                [await self.with_keys(each, "prompt", caller.tenant_share) for each in admitted], PlainText
            )

    async def with_keys(self, admitted: AdmittedPrompt, param: str, share: TenantShare) -> AdmittedPrompt:
        """Adds the keys of the prompt's KV blocks, if any worker reports its cached blocks."""
        return await self.work.with_keys(admitted, self._workers.block_sizes(), param, share)

    async def close(self) -> None:
        """Ends the threads, and the processes that check grammars."""
        self.work.close()
        await self.grammars.close()

    def pooling(self) -> Pooling | None:
        """Returns how the model makes vectors or scores; None if it answers chats."""
        return self._workers.pooling()

    @property
    def thought_end(self) -> int | None:
        """Returns the token that ends the model's thoughts, if any."""
        thinking = self._format.thinking
        return self.tokenizer.token_id(thinking.closing) if thinking is not None else None

    @property
    def thinks(self) -> bool:
        return self._format.thinking is not None

    @property
    def calls_tools(self) -> bool:
        return self._format.tool_format is not None and self._format.takes_tools

    async def wait_for_model(self, caller: Caller) -> None:
        """Waits for a model that was unloaded while it was idle. Raises `APIError`."""
        if self._unloaded.waiting > self._config.max_waiting:
            raise self._in_progress.full()
        await self._unloaded.over(caller.objective)

    @contextmanager
    def reserve_answers(self, body: SamplingFields, prompts: int) -> Iterator[None]:
        """Counts a body's answers as admitted while its prompts are tokenized.

        Raises `APIError` for errors that need no tokens, and beyond the allowed number of answers in progress.
        """
        answers = self._check(body, prompts)
        self.admitting += answers
        try:
            yield
        finally:
            self.admitting -= answers

    def _check(self, body: SamplingFields, prompts: int) -> int:
        """Returns the number of answers that a body asks for. Raises `APIError` if it cannot have them."""
        self._adapter(body)
        if body.stream_options is not None and not body.stream:
            raise conflict("stream_options is only allowed when stream is true", "stream_options")
        samples, max_answers = samples_of(body), self._config.max_requests
        name = "n" if samples == body.n else "best_of"
        if samples > self._config.max_samples:
            raise invalid(f"{name}: {samples} samples are more than {self._config.max_samples}", name)
        answers = prompts * samples
        if answers > max_answers:
            what = name if samples > 1 else "prompt"
            raise conflict(f"{what}: this asks for {answers} answers, and {max_answers} are allowed at a time", what)
        # The gate decides which waiting request is refused, so a few more may reach it.
        waiting = self._config.max_waiting
        if len(self._in_progress) + self.admitting + answers > max_answers + waiting + waiting // 4:
            raise self._in_progress.full()
        return answers

    def _adapter(self, body: SamplingFields) -> str:
        """Returns the digest of the adapter that a body names as its model, empty for the model. Raises `APIError`."""
        if body.model is None or body.model in self._names:
            return ""
        adapters = self._workers.adapters()
        if body.model not in adapters:
            raise no_model(body.model, self._model, adapters)
        return adapters[body.model].digest

    def checked_ids(self, ids: list[int], max_tokens: int | None, param: str = "prompt") -> list[int]:
        """Returns a client's token ids.

        Raises `TooManyTokens` for more than `max_tokens`, and `APIError` for ids outside the vocabulary.
        """
        size = self.tokenizer.vocabulary
        if max_tokens is not None and len(ids) > max_tokens:
            raise TooManyTokens(len(ids), counted=True)
        check_ids((min(ids, default=0), max(ids, default=0)), size, param)
        return ids

    def _refuse_pooling(self, what: str) -> None:
        """Raises `APIError` if the model answers with vectors or scores only."""
        if (pooling := self.pooling()) is not None:
            given = "embeds texts: use /v1/embeddings" if pooling.task == "embed" else "scores texts: use /v1/rerank"
            raise not_offered(f"the model {self._model}", what, f"it {given}")

    def _tail(self, prompt: list[int]) -> str:
        """Returns the text of a prompt's last tokens, special tokens included: it shows whether thinking has begun."""
        return b"".join(map(self.tokenizer.bytes_of.of, prompt[-TAIL_TOKENS:])).decode(errors="replace")

    async def _bad_words(self, body: SamplingFields, share: TenantShare) -> tuple[TokenIds, ...]:
        words = body.bad_words or ()
        if not words:
            return ()
        size = sum(map(len, words))
        return await self.work.run(lambda: bad_sequences(words, self.tokenizer), size, "bad_words", share)

    def _infill(self, body: CompletionRequest) -> Infill | None:
        """Returns the model's format for filling in the middle, if the body has a suffix.

        Raises `APIError` without one.
        """
        if not body.suffix:
            return None
        if self.tokenizer.infill is None:
            message = f"suffix: the tokenizer of {self._model} has no tokens for filling in the middle"
            raise invalid(message, "suffix", "no_infill_tokens")
        if body.echo or not isinstance(body.prompt, str):
            raise conflict("suffix: it goes with one prompt of text, without echo", "suffix")
        return self.tokenizer.infill

    def prompt_of(self, body: SamplingFields, ids: list[int], caller: Caller) -> Prompt:
        """Returns the prompt of a caller's tokens. Raises `APIError` for an unknown model."""
        return Prompt(
            ids,
            len(ids),
            salt=self._tenants.salt(caller, body.cache_salt or ""),
            priority=caller.allowed(body.priority),
            adapter=self._adapter(body),
            tenant=caller.tenant or self._tenants.salt(caller),
            weight=caller.weight,
        )

    def _admit(
        self,
        body: SamplingFields,
        prompt: list[int],
        param: str,
        default: int | None,
        sampling: Sampling,
        caller: Caller,
        markers: Collection[str] = (),
    ) -> AdmittedPrompt:
        room = self.window.answer_room(body, len(prompt), param, default)
        check_prompt(sampling, len(prompt))
        return AdmittedPrompt(
            prompt=self.prompt_of(body, prompt, caller),
            sampling=sampling,
            limits=limits_of(body, self.tokenizer, room.limit, sampling.grammar),
            stops=StopStrings(body.stops()),
            samples=samples_of(body),
            stop_ids=tuple(body.stop_token_ids or ()),
            markers=self.tokenizer.special_texts() if body.skip_special_tokens is False else tuple(markers),
            with_stop=bool(body.include_stop_str_in_output),
            objective=caller.objective,
            promise=caller.promise,
            reserved=len(prompt) + samples_of(body) * room.reserved,
            key=caller.key,
        )


def _check_arguments(messages: list[dict[str, Any]]) -> None:
    """Raises `APIError` if the arguments of earlier calls have too many values for a template."""
    left = MAX_ARGUMENT_VALUES
    for number, message in enumerate(messages):
        for call in message.get("tool_calls", ()):
            left -= values(call["function"]["arguments"], left)
        if left < 0:
            what = f"the arguments of calls up to messages[{number}] have more than {MAX_ARGUMENT_VALUES} values"
            raise invalid(what, f"messages[{number}].tool_calls", "too_many_values")
