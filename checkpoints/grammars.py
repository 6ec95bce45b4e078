"""Compiles grammars, in the same way for gateways, which check them, and for workers, which apply them.

A grammar is a Lark text as llguidance reads it (its `docs/syntax.md`): rules, regexes, JSON schemas after `%json`,
special tokens as `<[id]>`. Lexer states are made during an answer, so some limits apply only then.
"""

import json
from pathlib import Path

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from tokenizers import Tokenizer

from checkpoints.vocabulary.reading import tokenizer_of
from checkpoints.vocabulary.settings import named_tokens, read_object, settings_of
from contracts.errors import BatonError, ModelError

MAX_GRAMMAR_BYTES = 1 << 18

PARSER_LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000,  # some 20 ms, when it is compiled
    step_lexer_fuel=100_000,  # some 10 ms, for one token
    step_max_items=10_000,  # some 30 ms, for one token of the most ambiguous grammar
    max_items_in_row=2_000,
    max_lexer_states=20_000,  # 1 to 2 KB each
    max_grammar_size=200_000,  # symbols
    verbose_errors=False,  # they would quote the answer
)


class GrammarError(BatonError):
    """A grammar cannot be compiled or continued; the message is llguidance's first sentence."""


def end_of_text(directory: Path) -> tuple[int, ...]:
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
    """Returns llguidance's tokenizer for a model with `vocabulary` ids; takes half a second.

    Raises `ModelError` if the tokenizer is missing or broken, or has no end-of-text token.
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
    """Replaces a Metaspace decoder in a tokenizer.json, which llguidance does not know, by an equal sequence."""
    made = json.loads(source)
    decoder = made.get("decoder") or {}
    if decoder.get("type") != "Metaspace":
        return source
    spaces = {"type": "Replace", "pattern": {"String": decoder["replacement"]}, "content": " "}
    return json.dumps({**made, "decoder": {"type": "Sequence", "decoders": [spaces, {"type": "ByteFallback"}]}})


def compiled(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """Returns a matcher at the beginning of a text. Raises `GrammarError`. Releases the GIL."""
    matcher = LLMatcher(tokenizer, grammar, limits=PARSER_LIMITS, log_level=0)
    refuse_error(matcher)
    return matcher


def refuse_error(matcher: LLMatcher) -> None:
    """Raises `GrammarError` if a matcher has failed."""
    if matcher.is_error():
        raise GrammarError(first_sentence(matcher.get_error()))


def first_sentence(message: str) -> str:
    """Returns the first line and the reasons of an error, without its excerpts of the grammar."""
    lines = message.strip().splitlines() or ["it cannot be compiled"]
    reasons = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return " ".join([lines[0], *reasons])[:300]
