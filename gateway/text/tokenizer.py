"""Turns text into the token ids that transformers would give, without loading transformers."""

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer

from checkpoints.vocabulary.reading import tokenizer_of
from checkpoints.vocabulary.settings import named_tokens, settings_of
from gateway.text.chat import Chat
from gateway.text.chat_template import ChatTemplate
from gateway.text.detokenizer import BytePieces, Detokenizer, WindowDetokenizer, WithMarkers
from gateway.text.infill import infill
from gateway.text.literal_tokenizer import LiteralTokenizer
from gateway.text.longest_token import UNKNOWN_LENGTH, max_chars_per_token
from gateway.text.model_files import chat_templates, read_object
from gateway.text.spelled_tokens import SpelledTokens
from gateway.text.token_bytes import TokenBytes


class TooManyTokens(Exception):
    """A text has more tokens than allowed: `count`, or at least `count` if derived from its length (not `counted`)."""

    def __init__(self, count: int, counted: bool) -> None:
        super().__init__(f"{count} tokens")
        self.count = count
        self.counted = counted


class ModelTokenizer:
    """Everything that a model's files say about text. Raises `ModelError` naming a missing or broken file.

    `vocabulary` is the number of the model's token ids, which may exceed the tokenizer's. `context` is the model's
    limit on prompt and answer, or 0. `named` has special tokens by name, such as `bos_token`. `stop_ids` end an answer.
    `defaults` are the recommended sampling parameters. `spelled` decides whether special tokens in a chat's messages
    are text or tokens.
    """

    def __init__(self, directory: Path, spelled: Literal["text", "tokens"] = "text") -> None:
        config = read_object(directory, "config.json", required=True)
        config = {**config, **(config.get("text_config") or {})}
        settings = settings_of(directory)
        generation = read_object(directory, "generation_config.json")
        self._tokenizer = tokenizer_of(directory)
        self.named = named = named_tokens(settings)
        self.kind = str(settings.get("tokenizer_class") or "PreTrainedTokenizerFast")  # transformers' name
        self._tokenizer.no_truncation()  # truncation and padding are for training
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = bool(settings.get("split_special_tokens", False))
        self.vocabulary = int(config.get("vocab_size") or self._tokenizer.get_vocab_size())
        self.family = str(config.get("model_type") or "")  # as transformers names it
        self.context = int(config.get("max_position_embeddings") or 0)
        self.stop_ids = self._stop_ids(config, generation, named.get("eos_token"))
        self.defaults = {
            name: generation[name]
            for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
            if isinstance(generation.get(name), (int, float))
        }
        templates = chat_templates(directory, settings)
        source, with_tools = templates.get("default"), templates.get("tool_use")
        self.template_source = with_tools or source
        self.template = ChatTemplate(source, named, with_tools) if source is not None else None
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = {key for key, token in added.items() if token.special}
        self._added = {token.content: key for key, token in added.items()}
        made = json.loads(self._tokenizer.to_str())
        self._reach = max_chars_per_token(made, self._tokenizer.get_vocab(with_added_tokens=True))
        self._literal: LiteralTokenizer | None = None
        if spelled == "text" and not self._tokenizer.encode_special_tokens:
            self._literal = LiteralTokenizer(self._tokenizer, _unknown_token(made["model"]))
            self._spelled = SpelledTokens(self._literal.special)
        decoder = made.get("decoder") or {}
        self._byte_level = decoder.get("type") == "ByteLevel" or [
            part.get("type") for part in decoder.get("decoders", [])
        ] == ["ByteLevel"]
        self._pieces = BytePieces(self.piece)
        self.infill = infill(self.encode, self.token_id)
        self.bytes_of = TokenBytes(self._tokenizer.id_to_token, added.__contains__, self._byte_level)

    def encode(self, text: str, special: bool, max_tokens: int | None = None) -> list[int]:
        """Returns token ids. `special` adds the tokens around a text, such as a beginning-of-text token.

        Special tokens in the text become tokens, as with transformers. Other threads run meanwhile. Raises
        `TooManyTokens` beyond `max_tokens` tokens, before any work if the text's length suffices to tell.
        """
        self._check_length(text, max_tokens)
        return _token_ids(self._tokenizer, text, special, max_tokens)

    def encode_text(self, text: str, second: str | None, max_tokens: int, *, cuts: bool) -> list[int]:
        """Returns the ids of a text, or of a pair of texts, with the tokens around them.

        With `cuts` the end of the last text is left out beyond `max_tokens` tokens. Raises `TooManyTokens` as `encode`
        does.
        """
        if not cuts:
            self._check_length(text + (second or ""), max_tokens)
        tokenizer, is_pair = self._tokenizer, second is not None
        first, other = (*tokenizer.encode_batch_fast([text, second or ""], add_special_tokens=False),)
        around = tokenizer.num_special_tokens_to_add(is_pair)
        if cuts and is_pair:
            other.truncate(max(0, max_tokens - around - len(first)))
        elif cuts:
            first.truncate(max(0, max_tokens - around))
        ids: list[int] = tokenizer.post_process(first, other if is_pair else None).ids
        if len(ids) > max_tokens:
            raise TooManyTokens(len(ids), counted=True)
        return ids

    def chat(self, chat: Chat, max_tokens: int | None = None, template: ChatTemplate | None = None) -> list[int]:
        """Returns the token ids of a chat, rendered by the model's template, or by another `template`.

        Special tokens in messages are treated according to `spelled`.

        Raises `APIError` if the template refuses the chat, and `TooManyTokens` as `encode` does.
        """
        template = template or self.template
        assert template is not None, "a chat is admitted only with a template"
        if self._literal is None:
            return self.encode(template.render(chat), special=False, max_tokens=max_tokens)
        prompt = self._spelled.render(template.render, chat)
        if not prompt.marks:
            ids = self.encode(prompt.text, special=False, max_tokens=max_tokens)
            if not self._literal.is_forged(prompt.text, ids):
                return ids
        self._check_length(prompt.text, max_tokens)
        return self._literal.restored(
            _token_ids(self._literal.tokenizer, self._literal.written(prompt), special=False, max_tokens=max_tokens)
        )

    def piece(self, token: int) -> str | None:
        """Returns a token's spelling in the vocabulary; None for special tokens and unknown ids."""
        found: str | None = None if token in self._special else self._tokenizer.id_to_token(token)
        return found

    def decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text

    def written(self, ids: Sequence[int]) -> str:
        """Returns the text of token ids with special tokens spelled out. Other threads run meanwhile."""
        text: str = self._tokenizer.decode_batch([list(ids)], skip_special_tokens=False)[0]
        return text

    def names(self, ids: list[int]) -> list[str]:
        """Returns each token's spelling in the vocabulary, "" for unknown ids."""
        return [self._tokenizer.id_to_token(token) or "" for token in ids]

    def token_id(self, text: str) -> int | None:
        """Returns the id of the added token with exactly this text, special or not, or None."""
        return self._added.get(text)

    def added(self) -> dict[int, tuple[str, bool]]:
        return {id: (text, id in self._special) for text, id in self._added.items()}

    def special_texts(self) -> tuple[str, ...]:
        return tuple(text for text, id in self._added.items() if id in self._special)

    def detokenizer(self, markers: Collection[str] = ()) -> Detokenizer:
        written = {id: marker for marker in markers if (id := self._added.get(marker)) is not None}
        return WithMarkers(self._plain_detokenizer, written) if written else self._plain_detokenizer()

    def _plain_detokenizer(self) -> Detokenizer:
        return self._pieces.stream() if self._byte_level else WindowDetokenizer(self.decode, self.piece)

    def _check_length(self, text: str, max_tokens: int | None) -> None:
        """Raises `TooManyTokens` if a text's length alone implies more than `max_tokens` tokens."""
        least = 0 if self._reach == UNKNOWN_LENGTH else -(-len(text) // self._reach)
        if max_tokens is not None and least > max_tokens:
            raise TooManyTokens(least, counted=False)

    def _stop_ids(self, config: dict[str, Any], generation: dict[str, Any], eos: str | None) -> tuple[int, ...]:
        listed = generation.get("eos_token_id", config.get("eos_token_id"))
        found = {entry for entry in (listed if isinstance(listed, list) else [listed]) if isinstance(entry, int)}
        own = self._tokenizer.token_to_id(eos) if eos is not None else None
        return tuple(sorted(found | ({own} if own is not None else set())))


def _token_ids(tokenizer: Tokenizer, text: str, special: bool, max_tokens: int | None) -> list[int]:
    # `encode` keeps Python's lock for as long as it takes, which `encode_batch_fast` gives back; the ids are equal.
    found = tokenizer.encode_batch_fast([text], add_special_tokens=special)[0]
    if max_tokens is not None and len(found) > max_tokens:
        raise TooManyTokens(len(found), counted=True)
    ids: list[int] = found.ids
    return ids


def _unknown_token(model: dict[str, Any]) -> str | None:
    """Returns the token for unknown characters, or None."""
    name, place = model.get("unk_token"), model.get("unk_id")
    return model["vocab"][place][0] if name is None and place is not None else name
