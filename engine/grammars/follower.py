"""Follows sequences through their grammars: which tokens may come next, and which have to.

A follower's state is a matcher of llguidance. It is brought up to date from the sequence's own tokens, whatever became
of it meanwhile, so it may be dropped at any time: after a preemption, or on another worker, it is made anew from the
grammar and the tokens of the output.
"""

import threading
from collections import OrderedDict

from llguidance import LLMatcher, LLTokenizer

from checkpoints.grammars import GrammarError, compiled, refuse_error
from engine.plan import Work

MAX_FORCED_TOKENS = 64
"""Tokens that a sequence is given at once without a draw; the next step computes them all."""
MAX_COMPILED_GRAMMARS = 32
"""Grammars that are kept compiled, those without a sequence among them."""
MIN_FOLLOWED_SEQUENCES = 256
"""Sequences that are followed, at least; there may be as many as are in one step."""


class GrammarFollower:
    """Follows one sequence. Every method raises `GrammarError` where its grammar allows no such output."""

    def __init__(self, matcher: LLMatcher, tokens: list[int], prompt_tokens: int, end: int) -> None:
        """`matcher` is at the beginning; it is the follower's own. `end` ends a text whose grammar is complete.

        `tokens` is the sequence's own list: it is the same one as long as the sequence lives.
        """
        self.matcher = matcher
        self.tokens = tokens
        self.seen = prompt_tokens  # so many of them are known to the matcher, or are not output
        self._end = end
        self._ahead = False  # what has to come next was asked for, and is nothing

    @property
    def ended(self) -> bool:
        """Tells whether the text has ended: no token may follow."""
        return self.matcher.is_stopped()

    def catch_up(self) -> None:
        """Takes note of tokens that the sequence has got meanwhile."""
        if self.seen < len(self.tokens):
            self._consume(self.tokens[self.seen :])

    def forced(self, drawn: list[int]) -> list[int]:
        """Takes note of `drawn`, which the sequence gets now, and returns it with the tokens that have to follow.

        Where the text is complete, the token that ends it is the last of them.
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
        """Raises `GrammarError` if the matcher has stopped for another reason than a complete text."""
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
    """Keeps the followers of one engine's sequences, and their compiled grammars.

    Safe in every thread; one follower is used by one thread at a time. No lock is held while a grammar is compiled.
    """

    def __init__(self, tokenizer: LLTokenizer) -> None:
        self._tokenizer = tokenizer
        self._end = tokenizer.eos_tokens[0]
        self._lock = threading.Lock()
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._followers: OrderedDict[int, GrammarFollower] = OrderedDict()  # by sequence

    def of(self, work: Work) -> GrammarFollower:
        """Returns the follower of a work's sequence, brought up to date. Raises `GrammarError`."""
        assert work.sampling is not None and work.tokens is not None, "a work with a grammar looks back"
        with self._lock:
            follower = self._followers.get(work.sequence)
        if follower is None or follower.tokens is not work.tokens or follower.seen > len(follower.tokens):
            follower = self.made(work.sampling.grammar, work.tokens, work.prompt_tokens)
        else:
            follower.catch_up()
        self.keep(work.sequence, follower)
        return follower

    def made(self, grammar: str, tokens: list[int], prompt_tokens: int) -> GrammarFollower:
        """Returns a new follower, which has seen all of a sequence's `tokens`. Raises `GrammarError`."""
        follower = GrammarFollower(self._begun(grammar), tokens, prompt_tokens, self._end)
        follower.catch_up()
        return follower

    def keep(self, sequence: int, follower: GrammarFollower) -> None:
        """Keeps the follower of a sequence, as the last one to be forgotten."""
        with self._lock:
            self._followers[sequence] = follower
            self._followers.move_to_end(sequence)

    def known(self, sequence: int) -> GrammarFollower | None:
        """Returns the follower of a sequence as it is; None: there is none."""
        with self._lock:
            return self._followers.get(sequence)

    def forget(self, sequence: int) -> None:
        """Drops the follower of a sequence, if there is one."""
        with self._lock:
            self._followers.pop(sequence, None)

    def trim(self, most: int) -> None:
        """Forgets the sequences that were in no step for longest, but for `most` of all."""
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
