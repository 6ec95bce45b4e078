"""The context of the model: how long prompts and answers may be, and the refusal of longer ones."""

from collections.abc import Callable
from typing import NamedTuple

from gateway.errors import APIError, conflict, invalid
from gateway.openai.bodies.fitting import last_tokens
from gateway.openai.bodies.schemas import MAX_PROMPTS, CompletionRequest, SamplingFields

MAX_BODY_VALUES = 1 << 20  # JSON values of a body with token ids, whatever the context
MAX_VALUES_WITHOUT_IDS = 1 << 16  # such as the parts of messages: decoded in a millisecond
MAX_ANSWER_TOKENS_WITHOUT_CONTEXT = 1 << 20
UNBOUNDED_ANSWER_TOKENS = 512  # reserved for an answer without a limit


class AnswerRoom(NamedTuple):
    """The number of tokens that an answer may have."""

    limit: int  # maximum
    reserved: int  # counted against the limit of the API key until the answer has ended


class ContextWindow:
    """Compares lengths with the context, in tokens.

    `own_limits` are those of the gateway and its tokenizer, 0: none. `workers_limit` returns the shortest limit among
    the workers, or 0 while there are none.
    """

    def __init__(self, own_limits: tuple[int, ...], workers_limit: Callable[[], int]) -> None:
        self._own_limits = own_limits
        self._workers_limit = workers_limit

    def tokens(self) -> int:
        """Returns the maximum length of prompt + answer, or 0 without a limit."""
        return min((limit for limit in (*self._own_limits, self._workers_limit()) if limit), default=0)

    def body_values(self) -> int:
        """Returns the maximum number of JSON values of a body with token ids."""
        context = self.tokens()
        return min(MAX_BODY_VALUES, MAX_PROMPTS * context + MAX_VALUES_WITHOUT_IDS) if context else MAX_BODY_VALUES

    def max_prompt_tokens(self, body: SamplingFields, answers: bool = False) -> int | None:
        """Returns the maximum number of tokens of a prompt as it is rendered, None without a limit.

        None as well for a prompt whose beginning may be cut off (`truncate_prompt_tokens`). With `answers` the context
        has room for an answer of the wanted length.
        """
        context = self.tokens()
        if body.truncate_prompt_tokens is not None or not context:
            return None
        limit = (body.limit() or 1) if answers else 1
        return context - (limit if limit < context else 1)

    def truncated(self, body: SamplingFields, prompt: list[int]) -> list[int]:
        """Returns the last tokens of a prompt, as many as the body's `truncate_prompt_tokens` says; without it all."""
        context = self.tokens()
        room = context - (body.limit() or 1) if context else len(prompt)
        return last_tokens(prompt, body.truncate_prompt_tokens, room)

    def answer_room(self, body: SamplingFields, prompt: int, param: str, default: int | None) -> AnswerRoom:
        """Returns the room for an answer to a prompt of `prompt` tokens. Raises `APIError` if there is too little.

        `param` is the field with the prompt; `default` the limit of a body without one, None: the rest of the context.
        """
        context = self.tokens() or prompt + MAX_ANSWER_TOKENS_WITHOUT_CONTEXT
        if not prompt:
            raise invalid(f"{param} has no tokens", param, "empty_prompt")
        if prompt >= context:  # a worker with a shorter context has come meanwhile
            raise too_long(param, context, prompt)
        room = context - prompt
        limit = body.limit() or None
        if limit is None and body.max_tokens == 0 and not (isinstance(body, CompletionRequest) and body.echo):
            raise conflict("max_tokens is 0, which only an echo may have", "max_tokens")
        if limit is not None and limit > room:
            name = "max_tokens" if body.max_tokens is not None else "max_completion_tokens"
            raise _overflow(context, f"{param} has {prompt} and {name} asks for {limit}", name)
        usual = min(default or room, room)
        return AnswerRoom(limit or usual, limit or min(usual, UNBOUNDED_ANSWER_TOKENS))


def too_long(param: str, context: int, tokens: int, counted: bool = True) -> APIError:
    told = f"prompt is too long: {tokens} tokens > {context - 1} maximum"  # an answer has a token at least
    return _overflow(context, f"{param} alone has {'' if counted else 'at least '}{tokens}", param, told)


def _overflow(context: int, what: str, param: str, anthropic: str = "") -> APIError:
    # Clients recognize an overflow by these words, of OpenAI's two APIs and of Anthropic's.
    limit = f"this model's maximum context length is {context} tokens"
    message = f"{limit}, and {what}. Input tokens exceed the configured limit of {context} tokens."
    return invalid(message, param, "context_length_exceeded", anthropic)
