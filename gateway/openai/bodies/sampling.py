"""Derives from a body how tokens are sampled, and where an answer ends."""

import secrets
from collections.abc import Iterable, Sequence

from contracts.messages.sampling import Limits, Sampling, TokenBiases, TokenIds
from contracts.scores import MAX_PROMPT_SCORES
from gateway.errors import APIError, conflict, invalid
from gateway.openai.bodies.schemas import ChatRequest, CompletionRequest, SamplingFields
from gateway.text.tokenizer import ModelTokenizer

SEED_BITS = 63


def sampling_of(
    body: SamplingFields, tokenizer: ModelTokenizer, bad_words: tuple[TokenIds, ...], grammar: str
) -> Sampling:
    """Returns the client's settings, else the model's recommended ones, else OpenAI's defaults; always with a seed.

    Raises `APIError` for token ids that the model does not have.
    """

    def pick(name: str, given: float | None, default: float) -> float:
        return float(given if given is not None else tokenizer.defaults.get(name, default))

    allowed = None if body.allowed_token_ids is None else tuple(sorted(set(body.allowed_token_ids)))
    check_ids(allowed or (), tokenizer.vocabulary, "allowed_token_ids")
    return Sampling(
        seed=secrets.randbits(SEED_BITS) if body.seed is None else body.seed & ((1 << SEED_BITS) - 1),
        temperature=pick("temperature", body.temperature, 1.0),
        top_p=pick("top_p", body.top_p, 1.0),
        top_k=max(0, int(pick("top_k", body.top_k, 0))),
        min_p=pick("min_p", body.min_p, 0.0),
        repetition_penalty=pick("repetition_penalty", body.repetition_penalty, 1.0),
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=_biases(body, tokenizer.vocabulary),
        allowed_token_ids=allowed,
        bad_words=bad_words,
        grammar=grammar,
        logprobs=_logprobs(body),
        prompt_logprobs=_prompt_logprobs(body),
    )


def samples_of(body: SamplingFields) -> int:
    """Returns the number of samples for each prompt. Raises `APIError` if `best_of` and `n` contradict each other."""
    wanted = 1 if body.n is None else body.n
    made = wanted if body.best_of is None else body.best_of
    if made < wanted:
        raise conflict(f"best_of: the best {wanted} (n) of {made} answers cannot be chosen", "best_of")
    if made > wanted and body.stream:
        raise conflict(f"best_of: of {made} answers the best {wanted} (n) cannot be chosen in a stream", "best_of")
    return made


def limits_of(body: SamplingFields, tokenizer: ModelTokenizer, max_tokens: int, grammar: str) -> Limits:
    """Returns the limits of an answer of at most `max_tokens`. Raises `APIError` for impossible limits.

    With a grammar, the end-of-text token always ends the answer, since nothing else may follow a complete text.
    """
    own = body.stop_token_ids or ()
    check_ids(own, tokenizer.vocabulary, "stop_token_ids")
    least = body.min_tokens or 0
    if least > max_tokens:
        raise conflict(f"min_tokens: {least} are more than the {max_tokens} that the answer may have", "min_tokens")
    ends = () if body.ignore_eos and not grammar else tokenizer.stop_ids
    return Limits(max_tokens, tuple(sorted({*ends, *own})), least)


def check_prompt(sampling: Sampling, tokens: int) -> None:
    """Raises `APIError` if a prompt of this many tokens would have too many log-probabilities."""
    if sampling.prompt_logprobs is None:
        return
    count = tokens * (sampling.prompt_logprobs + 1)
    if count > MAX_PROMPT_SCORES:
        message = f"{tokens} tokens with {sampling.prompt_logprobs} alternatives are {count} log-probabilities"
        raise invalid(f"prompt_logprobs: {message}, and {MAX_PROMPT_SCORES} are allowed", "prompt_logprobs")


def check_ids(ids: Iterable[int], vocabulary: int, param: str) -> None:
    """Raises `APIError` for an id that is not a token of the model."""
    wrong = next((token for token in ids if not 0 <= token < vocabulary), None)
    if wrong is not None:
        raise unknown_token(wrong, vocabulary, param)


def unknown_token(token: int, vocabulary: int, param: str) -> APIError:
    message = f"{param}: token id {token} is outside the vocabulary of {vocabulary}"
    return invalid(message, param, "invalid_token_id")


def bad_sequences(words: Sequence[str], tokenizer: ModelTokenizer) -> tuple[TokenIds, ...]:
    """Returns the token sequences of these words, at the beginning of a text and after a space, as in vLLM."""
    found: list[TokenIds] = []
    for word in words:
        bare = tuple(tokenizer.encode(word.lstrip(), special=False))
        spaced = tuple(tokenizer.encode(" " + word.lstrip(), special=False))
        found.append(bare)
        if spaced and (not bare or spaced[0] != bare[0]) and len(spaced) == len(bare):
            found.append(spaced)
    return tuple(ids for ids in found if ids)


def _biases(body: SamplingFields, vocabulary: int) -> TokenBiases:
    biases = []
    for name, bias in (body.logit_bias or {}).items():
        if not name.isdecimal() or not name.isascii() or len(name) > 10:
            raise invalid(f"logit_bias: {name[:64]!r} is no token id", "logit_bias", "invalid_token_id")
        biases.append((int(name), bias))
    check_ids((token for token, _ in biases), vocabulary, "logit_bias")
    return tuple(biases)


def _logprobs(body: SamplingFields) -> int | None:
    """Returns the number of alternatives for each output token; None without scores."""
    wanted = None
    if isinstance(body, CompletionRequest):
        wanted = body.logprobs
    elif isinstance(body, ChatRequest):
        if body.top_logprobs and not body.logprobs:
            raise conflict("top_logprobs: logprobs has to be true beside it", "top_logprobs")
        wanted = (body.top_logprobs or 0) if body.logprobs else None
    chooses = body.best_of is not None and body.best_of > (body.n or 1)
    return 0 if wanted is None and chooses else wanted


def _prompt_logprobs(body: SamplingFields) -> int | None:
    """Returns the number of alternatives for each prompt token, which an echo has too; None without scores."""
    if body.prompt_logprobs is not None and body.stream:
        raise conflict("prompt_logprobs: a stream does not have them", "prompt_logprobs")
    wanted = [body.prompt_logprobs]
    if isinstance(body, CompletionRequest) and body.echo:
        wanted.append(body.logprobs)
    return max((top for top in wanted if top is not None), default=None)
