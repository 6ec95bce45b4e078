"""Turns texts and chats into token ids and back for /tokenize and /detokenize, as vLLM does.

/tokenizer_info tells the rest of what a client needs that has no tokenizer of its own, such as lm-eval.
"""

from functools import partial
from typing import Annotated, Literal

from msgspec import Meta, Struct

from gateway.errors import conflict, invalid
from gateway.openai.admission import PromptAdmission
from gateway.openai.bodies.messages import Messages
from gateway.openai.bodies.parsing import check_messages, converted, json_object
from gateway.openai.bodies.schemas import ChatRequest, CompletionRequest
from gateway.openai.bodies.tools import MAX_TOOLS, ChatTool
from infra.fair_queueing.turns import TenantShare

MAX_TOKENS_PER_REQUEST = 1 << 17  # ids that one answer or question may have: more would hold up the event loop


class TokenizeText(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds a text that is to be tokenized."""

    prompt: str
    model: str | None = None
    add_special_tokens: bool | None = None  # those that the tokenizer puts around a text; true where it is absent
    return_token_strs: bool | None = None


class TokenizeChat(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds a chat that is to be rendered by the model's template, and tokenized."""

    messages: Messages
    tools: Annotated[list[ChatTool], Meta(max_length=MAX_TOOLS)] | None = None
    model: str | None = None
    add_special_tokens: Literal[False] | None = None  # the template has them
    add_generation_prompt: bool | None = None  # what begins the assistant's answer; true where it is absent
    continue_final_message: Literal[False] | None = None
    return_token_strs: bool | None = None


class Detokenize(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds token ids that are to become text."""

    tokens: Annotated[list[Annotated[int, Meta(ge=0)]], Meta(max_length=MAX_TOKENS_PER_REQUEST)]
    model: str | None = None


class Tokenized(Struct, frozen=True):
    """Holds the token ids of a text or a chat."""

    count: int
    max_model_len: int | None  # null: no limit is known
    tokens: list[int]
    token_strs: list[str] | None  # as the vocabulary spells them, where that was asked for


class Detokenized(Struct, frozen=True):
    """Holds the text of token ids, special tokens spelled out."""

    prompt: str


class AddedToken(Struct, frozen=True):
    """Describes a token that was added to the vocabulary."""

    content: str
    special: bool


class TokenizerInfo(Struct, frozen=True):
    """Describes the tokenizer, under the names of transformers' tokenizer_config.json."""

    tokenizer_class: str
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    chat_template: str | None  # null: the model has none
    model_max_length: int | None  # prompt + answer in tokens; null: no limit is known
    added_tokens_decoder: dict[str, AddedToken]  # by id


def parse_tokenize(body: bytes) -> TokenizeText | TokenizeChat:
    """Returns the body of /tokenize. Raises `APIError` for whatever is wrong with it."""
    fields = json_object(body)
    if "prompt" in fields and "messages" in fields:
        raise conflict("messages: give a prompt or messages, not both", "messages")
    check_messages(fields.get("messages"))
    return converted(fields, TokenizeChat) if "messages" in fields else converted(fields, TokenizeText)


def parse_detokenize(body: bytes) -> Detokenize:
    """Returns the body of /detokenize. Raises `APIError` for whatever is wrong with it."""
    return converted(json_object(body), Detokenize)


async def tokenized(front: PromptAdmission, body: TokenizeText | TokenizeChat, party: TenantShare) -> Tokenized:
    """Returns the tokens of a text or chat, which may be longer than the context is. Raises `APIError`."""
    most = max(MAX_TOKENS_PER_REQUEST, front.context())
    if isinstance(body, TokenizeChat):
        chat = ChatRequest(model=body.model, messages=body.messages, tools=body.tools)
        with front.room(chat, 1):
            ids = await front.chat_tokens(chat, most, party, body.add_generation_prompt is not False)
    else:
        text, special = body.prompt, body.add_special_tokens is not False
        with front.room(CompletionRequest(model=body.model, prompt=text), 1):
            work = partial(front.tokenizer.encode, text, special, most)
            ids = await front.tokenized(work, len(text), "prompt", party)
    names = None
    if body.return_token_strs:
        names = await front.tokenized(lambda: front.tokenizer.names(ids), len(ids), "prompt", party)
    return Tokenized(len(ids), front.context() or None, ids, names)


async def detokenized(front: PromptAdmission, body: Detokenize, party: TenantShare) -> Detokenized:
    """Returns the text of token ids. Raises `APIError`."""
    size = front.tokenizer.vocabulary
    if (largest := max(body.tokens, default=0)) >= size:
        raise invalid(f"tokens: id {largest} is outside the vocabulary of {size}", "tokens", "invalid_token_id")
    with front.room(CompletionRequest(model=body.model, prompt=[*body.tokens]), 1):
        work = partial(front.tokenizer.written, body.tokens)
        return Detokenized(await front.tokenized(work, len(body.tokens), "tokens", party))


def tokenizer_info(front: PromptAdmission) -> TokenizerInfo:
    """Returns what the model's files say about its tokenizer."""
    tokenizer = front.tokenizer
    bos, eos, pad, unknown = (tokenizer.named.get(f"{name}_token") for name in ("bos", "eos", "pad", "unk"))
    added = {str(id): AddedToken(text, special) for id, (text, special) in tokenizer.added().items()}
    context = front.context() or None
    return TokenizerInfo(tokenizer.kind, bos, eos, pad, unknown, tokenizer.template_source, context, added)
