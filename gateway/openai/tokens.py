"""Implements /tokenize and /detokenize, which convert between text and token ids as in vLLM.

/tokenizer_info describes the rest for clients without a tokenizer of their own, such as lm-eval.
"""

from functools import partial
from typing import Annotated, Literal

from msgspec import Meta, Struct

from gateway.errors import conflict, invalid
from gateway.openai.admission import PromptAdmission
from gateway.openai.bodies.messages import Messages
from gateway.openai.bodies.parsing import check_messages, converted, json_object
from gateway.openai.bodies.schemas import ChatRequest, CompletionRequest
from gateway.openai.bodies.tools import MAX_TOOLS, ChatTool, CustomTool
from gateway.openai.bodies.unknown_fields import REFUSED, UnknownFields
from infra.fair_queueing.turns import TenantShare

MAX_TOKENS_PER_REQUEST = 1 << 17  # ids in one body or answer; more would block the event loop


class TokenizeText(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of /tokenize for a text."""

    prompt: str
    model: str | None = None
    add_special_tokens: bool | None = None  # special tokens around a text; true by default
    return_token_strs: bool | None = None


class TokenizeChat(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of /tokenize for a chat, which the model's template renders."""

    messages: Messages
    tools: Annotated[list[ChatTool | CustomTool], Meta(max_length=MAX_TOOLS)] | None = None
    model: str | None = None
    add_special_tokens: Literal[False] | None = None  # the template has them
    add_generation_prompt: bool | None = None  # the beginning of the assistant's answer; true by default
    continue_final_message: bool | None = None  # the prompt ends with the last message, which is left open
    return_token_strs: bool | None = None


class Detokenize(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of /detokenize."""

    tokens: Annotated[list[Annotated[int, Meta(ge=0)]], Meta(max_length=MAX_TOKENS_PER_REQUEST)]
    model: str | None = None


class Tokenized(Struct, frozen=True):
    count: int
    max_model_len: int | None  # null: unknown
    tokens: list[int]
    token_strs: list[str] | None  # as the vocabulary spells them, if requested


class Detokenized(Struct, frozen=True):
    """The text of token ids, with special tokens spelled out."""

    prompt: str


class AddedToken(Struct, frozen=True):
    """A token that was added to the vocabulary."""

    content: str
    special: bool


class TokenizerInfo(Struct, frozen=True):
    """Description of the tokenizer, with the names of transformers' tokenizer_config.json."""

    tokenizer_class: str
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    chat_template: str | None  # null: the model has none
    model_max_length: int | None  # tokens of prompt and answer; null: unknown
    added_tokens_decoder: dict[str, AddedToken]  # by id


def parse_tokenize(body: bytes, unknown: UnknownFields = REFUSED) -> TokenizeText | TokenizeChat:
    """Returns the body of /tokenize. Raises `APIError` if anything is wrong with it."""
    fields = json_object(body)
    if "prompt" in fields and "messages" in fields:
        raise conflict("messages: give a prompt or messages, not both", "messages")
    check_messages(fields.get("messages"))
    if "messages" in fields:
        return converted(fields, TokenizeChat, unknown)
    return converted(fields, TokenizeText, unknown)


def parse_detokenize(body: bytes, unknown: UnknownFields = REFUSED) -> Detokenize:
    """Returns the body of /detokenize. Raises `APIError` if anything is wrong with it."""
    return converted(json_object(body), Detokenize, unknown)


async def counted_tokens(admission: PromptAdmission, chat: ChatRequest, share: TenantShare) -> list[int]:
    """Returns the tokens of a chat's prompt, which may exceed the context. Raises `APIError`."""
    with admission.reserve_answers(chat, 1):
        return await admission.chat_tokens(chat, max(MAX_TOKENS_PER_REQUEST, admission.window.tokens()), share)


async def tokenized(admission: PromptAdmission, body: TokenizeText | TokenizeChat, share: TenantShare) -> Tokenized:
    """Returns the tokens of a text or chat, which may exceed the context. Raises `APIError`."""
    if isinstance(body, TokenizeChat):
        chat = ChatRequest(
            model=body.model,
            messages=body.messages,
            tools=None if body.tools is None else [*body.tools],
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
        )
        ids = await counted_tokens(admission, chat, share)
    else:
        most = max(MAX_TOKENS_PER_REQUEST, admission.window.tokens())
        text, special = body.prompt, body.add_special_tokens is not False
        with admission.reserve_answers(CompletionRequest(model=body.model, prompt=text), 1):
            work = partial(admission.tokenizer.encode, text, special, most)
            ids = await admission.work.run(work, len(text), "prompt", share)
    names = None
    if body.return_token_strs:
        names = await admission.work.run(lambda: admission.tokenizer.names(ids), len(ids), "prompt", share)
    return Tokenized(len(ids), admission.window.tokens() or None, ids, names)


async def detokenized(admission: PromptAdmission, body: Detokenize, share: TenantShare) -> Detokenized:
    """Returns the text of token ids. Raises `APIError`."""
    size = admission.tokenizer.vocabulary
    if (largest := max(body.tokens, default=0)) >= size:
        raise invalid(f"tokens: id {largest} is outside the vocabulary of {size}", "tokens", "invalid_token_id")
    with admission.reserve_answers(CompletionRequest(model=body.model, prompt=[*body.tokens]), 1):
        work = partial(admission.tokenizer.written, body.tokens)
        return Detokenized(await admission.work.run(work, len(body.tokens), "tokens", share))


def tokenizer_info(admission: PromptAdmission) -> TokenizerInfo:
    """Returns the description of the tokenizer in the model's files."""
    tokenizer = admission.tokenizer
    bos, eos, pad, unknown = (tokenizer.named.get(f"{name}_token") for name in ("bos", "eos", "pad", "unk"))
    added = {str(id): AddedToken(text, special) for id, (text, special) in tokenizer.added().items()}
    context = admission.window.tokens() or None
    return TokenizerInfo(tokenizer.kind, bos, eos, pad, unknown, tokenizer.template_source, context, added)
