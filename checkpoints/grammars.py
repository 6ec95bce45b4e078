"""Reads and compiles grammars, the same way for a gateway that checks them and for workers whose answers obey them.

A grammar is a text in Lark as llguidance reads it (its `docs/syntax.md`): rules, regexes, JSON schemas behind `%json`,
special tokens as `<[id]>`. Its lexer's states are made while an answer goes on, so some limits show only then.
"""

import json
from pathlib import Path

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from tokenizers import Tokenizer

from checkpoints.vocabulary.reading import tokenizer_of
from checkpoints.vocabulary.settings import named_tokens, read_object, settings_of
from contracts.errors import BatonError, ModelError

MAX_GRAMMAR_BYTES = 1 << 18
"""UTF-8 bytes of a grammar, at most."""

PARSER_LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000,  # some 20 ms, when it is compiled
    step_lexer_fuel=100_000,  # some 10 ms, for one token
    step_max_items=10_000,  # some 30 ms, for one token of the most ambiguous grammar
    max_items_in_row=2_000,
    max_lexer_states=20_000,  # 1 to 2 KB each
    max_grammar_size=200_000,  # symbols
    verbose_errors=False,  # they would quote the answer
)
"""What one grammar may cost, wherever it is compiled."""


class GrammarError(BatonError):
    """A grammar cannot be compiled, or cannot go on; the message is llguidance's first sentence."""


def end_of_text(directory: Path) -> tuple[int, ...]:
    """Returns the ids of the tokens that end a text, by the model's files; none where they name none."""
    return _ends(directory, tokenizer_of(directory))


def _ends(directory: Path, tokenizer: Tokenizer) -> tuple[int, ...]:
    config, generation = (read_object(directory / name) for name in ("config.json", "generation_config.json"))
    config = {**config, **(config.get("text_config") or {})}
    listed = generation.get("eos_token_id", config.get("eos_token_id"))
    found = {entry for entry in (listed if isinstance(listed, list) else [listed]) if isinstance(entry, int)}
    named = named_tokens(settings_of(directory)).get("eos_token")
    own = tokenizer.token_to_id(named) if named is not None else None
    return tuple(sorted(found | ({own} if own is not None else set())))


def read_tokenizer(directory: Path, vocabulary: int) -> LLTokenizer:
    """Returns the tokenizer that grammars of a model with `vocabulary` ids are compiled with; half a second's work.

    Raises `ModelError` where it is missing or cannot be read, or no token ends a text.
    """
    tokenizer = tokenizer_of(directory)
    ends = _ends(directory, tokenizer)
    if not ends:
        raise ModelError(f"constrained output: {directory} names no end-of-text token")
    try:
        return LLTokenizer(_with_known_decoder(tokenizer.to_str()), n_vocab=vocabulary, eos_token=list(ends))
    except ValueError as error:
        raise ModelError(f"constrained output: the tokenizer of {directory}: {first_sentence(str(error))}") from None


def _with_known_decoder(source: str) -> str:
    """Returns a tokenizer.json whose decoder llguidance knows: of a Metaspace decoder, its parts."""
    made = json.loads(source)
    decoder = made.get("decoder") or {}
    if decoder.get("type") != "Metaspace":
        return source
    spaces = {"type": "Replace", "pattern": {"String": decoder["replacement"]}, "content": " "}
    return json.dumps({**made, "decoder": {"type": "Sequence", "decoders": [spaces, {"type": "ByteFallback"}]}})


def compiled(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """Returns a matcher at the beginning of a text. Raises `GrammarError`. Other threads run meanwhile."""
    matcher = LLMatcher(tokenizer, grammar, limits=PARSER_LIMITS, log_level=0)
    refuse_error(matcher)
    return matcher


def refuse_error(matcher: LLMatcher) -> None:
    """Raises `GrammarError` if a matcher cannot go on."""
    if matcher.is_error():
        raise GrammarError(first_sentence(matcher.get_error()))


def first_sentence(message: str) -> str:
    """Returns what an error says in its first line, and behind it why: not its pictures of places in a text."""
    lines = message.strip().splitlines() or ["it cannot be compiled"]
    reasons = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return " ".join([lines[0], *reasons])[:300]
