"""Follows sequences through their grammars: which tokens are allowed next, and which are forced.

A follower's state is a matcher of llguidance, brought up to date from the sequence's own tokens. So it may be dropped
at any time: after a preemption, or on another worker, it is rebuilt from the grammar and the output tokens.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence

from llguidance import LLMatcher, LLTokenizer

from checkpoints.grammars import GrammarError, compiled, refuse_error
from engine.plan import Work

MAX_FORCED_TOKENS = 64
"""Tokens appended at once without sampling; the next step computes them all."""
MAX_COMPILED_GRAMMARS = 32
"""Size of the cache of compiled grammars."""
MIN_FOLLOWED_SEQUENCES = 256
"""Followers kept, at least; more if a step has more sequences."""


class GrammarFollower:
    """Follows one sequence. Every method raises `GrammarError` if the grammar does not allow the output."""

    def __init__(self, matcher: LLMatcher, tokens: Sequence[int], prompt_tokens: int, end: int) -> None:
        """`matcher` is new and owned by the follower. `end` is the token that ends a complete text.

        `tokens` is the sequence's own array, the same object for the sequence's whole life.
        """
        self.matcher = matcher
        self.tokens = tokens
        self.seen = prompt_tokens  # number of `tokens` that are prompt, or known to the matcher
        self._end = end
        self._ahead = False  # no token is forced next, as the matcher has said

    @property
    def ended(self) -> bool:
        return self.matcher.is_stopped()

    def catch_up(self) -> None:
        if self.seen < len(self.tokens):
            self._consume(list(self.tokens[self.seen :]))

    def forced(self, drawn: list[int]) -> list[int]:
        """Consumes the sampled tokens `drawn`, and returns them with the tokens that are forced after them.

        If the text is complete, the last one is the end token.
        """
        self._consume(drawn)
        found = list(drawn)
        if not self._ahead and not self.matcher.is_stopped():
            more = self.matcher.compute_ff_tokens()[:MAX_FORCED_TOKENS]
            self._consume(more)
            self._ahead = len(more) < MAX_FORCED_TOKENS
            found += more
        if self.matcher.is_stopped() and found[-1:] != [self._end]:
            self._refuse_unfinished()
            self.seen += 1
            found.append(self._end)
        return found

    def _refuse_unfinished(self) -> None:
        refuse_error(self.matcher)
        if not self.matcher.is_accepting():
            raise GrammarError(self.matcher.stop_reason())

    def _consume(self, tokens: list[int]) -> None:
        if not tokens:
            return
        self._ahead = False
        self.seen += len(tokens)
        if not self.matcher.consume_tokens(tokens):
            raise GrammarError("the output does not fit it")  # the matcher's own message would quote the output


class GrammarFollowers:
    """The followers of one engine's sequences, and their compiled grammars.

    Thread-safe; one follower is used by one thread at a time. No lock is held while a grammar is compiled.
    """

    def __init__(self, tokenizer: LLTokenizer) -> None:
        self._tokenizer = tokenizer
        self._end = tokenizer.eos_tokens[0]
        self._lock = threading.Lock()
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._followers: OrderedDict[int, GrammarFollower] = OrderedDict()  # by sequence

    def of(self, work: Work) -> GrammarFollower:
        """Returns the up-to-date follower of a work's sequence. Raises `GrammarError`."""
        assert work.sampling is not None and work.tokens is not None, "a work with a grammar looks back"
        with self._lock:
            follower = self._followers.get(work.sequence)
        if follower is None or follower.tokens is not work.tokens or follower.seen > len(follower.tokens):
            follower = self.made(work.sampling.grammar, work.tokens, work.prompt_tokens)
        else:
            follower.catch_up()
        self.keep(work.sequence, follower)
        return follower

    def made(self, grammar: str, tokens: Sequence[int], prompt_tokens: int) -> GrammarFollower:
        """Returns a new follower that has consumed all `tokens`. Raises `GrammarError`."""
        follower = GrammarFollower(self._begun(grammar), tokens, prompt_tokens, self._end)
        follower.catch_up()
        return follower

    def keep(self, sequence: int, follower: GrammarFollower) -> None:
        with self._lock:
            self._followers[sequence] = follower
            self._followers.move_to_end(sequence)

    def known(self, sequence: int) -> GrammarFollower | None:
        """Returns the follower of a sequence, not brought up to date, or None."""
        with self._lock:
            return self._followers.get(sequence)

    def forget(self, sequence: int) -> None:
        with self._lock:
            self._followers.pop(sequence, None)

    def trim(self, most: int) -> None:
        with self._lock:
            while len(self._followers) > max(most, MIN_FOLLOWED_SEQUENCES):
                self._followers.popitem(last=False)

    def _begun(self, grammar: str) -> LLMatcher:
        with self._lock:
            known = self._compiled.get(grammar)
        if known is None:
            known = compiled(self._tokenizer, grammar)
        with self._lock:
            self._compiled[grammar] = known
            self._compiled.move_to_end(grammar)
            if len(self._compiled) > MAX_COMPILED_GRAMMARS:
                self._compiled.popitem(last=False)
        return known.deep_copy()
