"""Checks grammars in a process of its own: `python -m gateway.grammar.checker DIRECTORY VOCABULARY`.

The process reads the model's tokenizer once. For each check it forks a child, which compiles the grammar as a worker
would, under limits of memory and processor time that the kernel enforces. So every check ends soon, this process stays
sound, and nothing has to be read again. It has one thread, and lives until its input ends.
"""

import os
import random
import resource
import signal
import struct
import sys
from pathlib import Path
from typing import NoReturn

import msgspec
from llguidance import LLMatcher, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from checkpoints.grammars import MAX_GRAMMAR_BYTES, GrammarError, compiled, first_sentence, read_tokenizer, refuse_error
from contracts.errors import ModelError
from gateway.grammar.counting import COUNT_REFUSAL, UNCOUNTED_ERROR
from gateway.grammar.frames import LENGTH_BYTES, GrammarCheck, GrammarVerdict

CHECKER_NICENESS = 5  # workers go first: a check gets a third of a worker's share where all processors are busy
TRIAL_TOKENS = 32  # length of the text that a check writes by the grammar
MAX_CHECK_CPU_S = 0.15
MAX_CHECK_BYTES = 512 << 20  # beyond the memory of the tokenizer
REPLACED_MESSAGES = {
    UNCOUNTED_ERROR: COUNT_REFUSAL,
    "NoExtensionBias": "no text fits it, as where a reference leads only back to itself",
}
"""Clearer sentences for some errors of llguidance."""

TOO_LARGE_WORDS = (
    "too large",
    "too complex",
    "too deeply",
    "too many",
    "recursion limit",
    "fuel",
    "limit exceeded",
    "budget",
)


def serve(tokenizer: LLTokenizer, incoming: int, outgoing: int) -> None:
    """Answers checks one after the other until `incoming` ends."""
    while (body := _read(incoming)) is not None:
        child = os.fork()
        if child == 0:
            _answer(tokenizer, body, outgoing)
        if os.waitpid(child, 0)[1] != 0:
            message = f"it takes more than {MAX_CHECK_CPU_S:g} s or {MAX_CHECK_BYTES >> 20} MiB to compile"
            _write(outgoing, GrammarVerdict("grammar_too_complex", message))


def _answer(tokenizer: LLTokenizer, body: bytes, outgoing: int) -> NoReturn:
    status = 1
    try:
        _bound()
        verdict = check(tokenizer, msgspec.json.decode(body, type=GrammarCheck))
        signal.setitimer(signal.ITIMER_PROF, 0)
        _write(outgoing, verdict)
        status = 0
    except MemoryError:
        pass  # reported like a process that the kernel has killed
    finally:
        os._exit(status)


def check(tokenizer: LLTokenizer, request: GrammarCheck) -> GrammarVerdict:
    """Compiles a grammar, and writes the beginning of a text by it."""
    try:
        grammar = _lark(request)
        _walk(compiled(tokenizer, grammar), tokenizer)
    except GrammarError as error:
        large = any(words in str(error) for words in TOO_LARGE_WORDS)
        message = next((ours for theirs, ours in REPLACED_MESSAGES.items() if theirs in str(error)), str(error))
        return GrammarVerdict("grammar_too_complex" if large else "invalid_grammar", message)
    if len(grammar.encode()) > MAX_GRAMMAR_BYTES:
        return GrammarVerdict("grammar_too_complex", f"in Lark it has more than {MAX_GRAMMAR_BYTES} bytes")
    return GrammarVerdict(grammar=grammar if request.written == "any" else "")


def _walk(matcher: LLMatcher, tokenizer: LLTokenizer) -> None:
    """Writes a text that the grammar allows. Raises `GrammarError` if a token takes too much work.

    A grammar of unbounded ambiguity compiles at once, and fails only here.
    """
    chance = random.Random(0)
    for _ in range(TRIAL_TOKENS):
        bits = int.from_bytes(matcher.compute_bitmask(), "little")
        refuse_error(matcher)
        for end in tokenizer.eos_tokens:
            bits &= ~(1 << end)
        if not bits:
            return  # the text is complete
        skipped = chance.randrange(tokenizer.vocab_size)
        above = bits >> skipped
        matcher.consume_token(skipped + _lowest(above) if above else _lowest(bits))
        refuse_error(matcher)


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def _lark(request: GrammarCheck) -> str:
    """Returns a grammar in Lark. Raises `GrammarError` if it is neither Lark nor GBNF."""
    if request.written == "lark":
        return request.grammar
    try:
        return any_to_lark(request.grammar)
    except MemoryError:
        raise
    except Exception as error:  # the library raises nothing more specific
        raise GrammarError(f"neither Lark, which has a rule `start:`, nor GBNF: {first_sentence(str(error))}") from None


def _bound() -> None:
    """Limits this process. The kernel kills it with a signal beyond the limits."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, MAX_CHECK_CPU_S)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MAX_CHECK_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _read(incoming: int) -> bytes | None:
    """Returns the body of the next frame, or None at the end of the input."""
    head = _exactly(incoming, LENGTH_BYTES)
    return _exactly(incoming, struct.unpack("<I", head)[0]) if head is not None else None


def _exactly(incoming: int, size: int) -> bytes | None:
    parts = []
    while size:
        part = os.read(incoming, size)
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _write(outgoing: int, verdict: GrammarVerdict) -> None:
    body = msgspec.json.encode(verdict)
    left = memoryview(struct.pack("<I", len(body)) + body)
    while left:
        left = left[os.write(outgoing, left) :]


def main() -> int:
    """Returns exit status 0 when its input ends, and 2 if the model's tokenizer cannot be used."""
    os.nice(CHECKER_NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all processes; the gateway ends this one
    directory, vocabulary = sys.argv[1:]
    try:
        tokenizer = read_tokenizer(Path(directory), int(vocabulary))
    except ModelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    serve(tokenizer, sys.stdin.fileno(), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
