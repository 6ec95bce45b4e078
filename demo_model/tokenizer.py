"""Trains the byte-level BPE tokenizer: any text can be encoded, digits stand alone, emoji stay in bytes."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from demo_model.conversation import Conversation
from demo_model.texts import Lines

PAD, BOS, EOS = "<|pad|>", "<|bos|>", "<|end|>"
ROLES = ("system", "user", "assistant")
SPECIAL = (PAD, BOS, EOS, *(f"<|{role}|>" for role in ROLES))

# Whole tokens, so that a call begins with one choice; not special, so that their text is in answers, as Qwen's is.
TOOL_MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

CHAT_TEMPLATE = (Path(__file__).parent / "chat_template.jinja").read_text(encoding="utf-8").strip()

# How much more the tokens of an answer weigh that has fewer than SHORT_TOKENS, and those copied from the question.
SHORT_TOKENS, SHORT_WEIGHT, COPY_WEIGHT = 40, 3.0, 3.0

# Emoji are kept from the trainer, so that each takes several tokens: then chats exercise the hardest case of streaming
# text, a character that arrives in pieces.
_EMOJI = re.compile(r"[^\x00-\u2fff]")
_MARKS = re.compile("|".join(TOOL_MARKS))


def train_tokenizer(conversations: Iterable[Conversation], words: Lines, vocabulary: int, samples: int) -> Tokenizer:
    """Learns merges from the first `samples` conversations, and from `words`, each often enough to become one token.

    The same text gives the same merges.
    """
    tokenizer = Tokenizer(models.BPE())
    # Digits first: a number's pieces must not depend on its neighbours, or sums cannot be learned.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(TOOL_MARKS),
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = (_EMOJI.sub("", text) for conversation in islice(conversations, samples) for text in _texts(conversation))
    tokenizer.train_from_iterator(chain(texts, (f" {word}" for word in words for _ in range(samples // 40))), trainer)
    tokenizer.add_tokens([AddedToken(mark, normalized=False, special=False) for mark in TOOL_MARKS])
    return tokenizer


def _texts(conversation: Conversation) -> list[str]:
    """Returns all texts and tools of a conversation, without special tokens."""
    texts = [conversation.toolbox()]
    for exchange in conversation.turns:
        texts += [exchange.ask, exchange.calling(), exchange.results(), exchange.answer]
    return [_MARKS.sub("", text) for text in texts]


def chat_tokenizer(tokenizer: Tokenizer, context: int) -> PreTrainedTokenizerFast:
    """Returns the tokenizer as transformers' class, with the chat template."""
    build: Callable[..., PreTrainedTokenizerFast] = PreTrainedTokenizerFast  # transformers leaves its arguments untyped
    wrapped = build(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, directory: Path) -> None:
    """Saves the tokenizer for all readers: older ones need the template and a known class name in the config."""
    tokenizer.save_pretrained(directory)
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config |= {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": CHAT_TEMPLATE}
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


class Encoder:
    """Turns conversations into token ids as the chat template would, with a loss weight for each token."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # The vocabulary starts with the special tokens, in their order.
        _, self._bos, self._eos, self._system, self._user, self._assistant = range(len(SPECIAL))

    def encode(self, conversation: Conversation, system: str | None = None) -> tuple[list[int], list[float]]:
        """Returns token ids with their loss weights: 0 for questions, more for hard tokens.

        Short answers weigh more, or a sum's few digits would drown in the stories' many words. Words that come from the
        question weigh more, because copying them is learned last.
        """
        ids, weights = [self._bos], [0.0]

        def add(turn: int, text: str, answer_weights: list[float] | None = None) -> None:
            pieces = self._text(text)
            ids.extend([turn, *pieces, self._eos])
            weights.extend([0.0, *(answer_weights or [0.0] * (len(pieces) + 1))])

        if system is not None or conversation.tools:
            add(self._system, "\n".join(text for text in (system, conversation.toolbox()) if text))
        for exchange in conversation.turns:
            add(self._user, exchange.ask)
            if exchange.calls:
                # Names come from the system turn, arguments from the question, all word by word.
                copied = [name for call in exchange.calls for name in (call.name, *map(str, call.arguments.values()))]
                add(self._assistant, exchange.calling(), self._answer_weights(exchange.calling(), copied))
                add(self._user, exchange.results())
            known = exchange.ask + exchange.results()
            copied = [word for word in exchange.subject if word in known]
            add(self._assistant, exchange.answer, self._answer_weights(exchange.answer, copied))
        return ids, weights

    def _answer_weights(self, answer: str, copied: Sequence[str]) -> list[float]:
        """Returns the weights of an answer's tokens and its end."""
        encoded = self._tokenizer.encode(answer, add_special_tokens=False)
        weight = min(SHORT_WEIGHT, max(1.0, SHORT_TOKENS / len(encoded.ids)))
        spans = [match.span() for word in copied for match in re.finditer(re.escape(word), answer)]
        return [
            weight * (COPY_WEIGHT if any(start < last and end > first for first, last in spans) else 1.0)
            for start, end in encoded.offsets
        ] + [weight]

    def _text(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids
