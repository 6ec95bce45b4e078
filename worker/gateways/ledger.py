"""The answers of a worker by attempt: tokens, a cursor for sent tokens, and the end.

Pure: no sockets, no clock. Because of the cursor, a slow gateway costs no memory beyond the tokens, and a lost message
is repeated by moving the cursor back. Entries live until the gateway has acknowledged the end.
"""

import enum
from collections import OrderedDict
from collections.abc import Iterable, Iterator

from contracts.ids import AttemptKey, SampleKey
from contracts.messages.gateway import Emitted, Stages
from contracts.messages.sampling import Finish
from contracts.scores import Scores
from worker.events import AttemptFailure
from worker.gateways.score_log import ScoreLog

MAX_TOMBSTONES = 65536  # remembered cancels
TOMBSTONE_TTL_S = 600.0  # lifetime of a remembered cancel
VECTOR_BYTES_PER_TOKEN = 256  # of a message's tokens: 256 tokens are 64 KiB of vectors
DEADLINE_GRACE_S = 30.0  # an entry waits for an acknowledgement this long past its deadline


class AttemptArrival(enum.Enum):
    """Verdict on an arriving attempt."""

    NEW = enum.auto()  # begin it
    DUPLICATE = enum.auto()  # already here
    DEAD = enum.auto()  # cancelled, or a higher attempt is here


class LedgerEntry:
    """One attempt at one sample."""

    __slots__ = (
        "base",
        "deadline",
        "end_sent",
        "failure",
        "finish",
        "gateway",
        "key",
        "prompt_scores",
        "scores",
        "sent",
        "stages",
        "stages_sent",
        "state",
        "tokens",
        "vector",
    )

    def __init__(self, key: AttemptKey, gateway: str, base: int, deadline: float) -> None:
        """`base`: output index of the attempt's first token. `deadline`: Redis server time, s."""
        self.key, self.gateway, self.base, self.deadline = key, gateway, base, deadline
        self.tokens: list[int] = []  # output indices base, base + 1, …
        self.scores: ScoreLog | None = None  # of `tokens`, if requested
        self.prompt_scores: Scores | None = None  # sent with the first token
        self.vector = b""  # sent with the end
        self.sent = 0  # cursor: number of sent `tokens`
        self.finish: Finish | None = None
        self.failure: AttemptFailure | None = None
        self.stages: Stages | None = None
        self.stages_sent = False  # sent once, and again to a gateway that asks
        self.end_sent = False
        self.state = "queued"  # state for `Alive`

    def ended(self) -> bool:
        return self.finish is not None or self.failure is not None

    def owed(self) -> bool:
        return self.sent < len(self.tokens) or (self.ended() and not self.end_sent)

    def pending(self, count: int) -> Emitted:
        """Returns up to `count` tokens after the cursor; the last tokens carry the end."""
        tokens = self.tokens[self.sent : self.sent + count]
        is_last = self.sent + len(tokens) >= len(self.tokens)
        scores = self.scores.part(self.sent, self.sent + len(tokens)) if self.scores is not None else None
        prompt_scores = self.prompt_scores if self.sent == 0 else None
        finish = self.finish if is_last else None
        stages = None if self.stages_sent else self.stages
        vector = self.vector if is_last else b""
        return Emitted(self.key, self.base + self.sent, tokens, finish, stages, scores, prompt_scores, vector)


class Ledger:
    """All entries of a worker, and tombstones of cancelled attempts."""

    def __init__(self) -> None:
        self._entries: dict[SampleKey, LedgerEntry] = {}
        self._owing: dict[str, dict[SampleKey, LedgerEntry]] = {}  # by gateway, in order
        # highest cancelled attempt, and expiry in s
        self._dead: OrderedDict[SampleKey, tuple[int, float]] = OrderedDict()

    def begin(
        self, key: AttemptKey, gateway: str, base: int, deadline: float
    ) -> tuple[AttemptArrival, AttemptKey | None]:
        """Adds an entry if it is new. Returns the verdict, and the lower living attempt that the new one ends."""
        if self.cancelled(key):
            return AttemptArrival.DEAD, None
        known = self._entries.get(key.of)
        if known is not None and known.key.attempt >= key.attempt:
            return (AttemptArrival.DUPLICATE if known.key == key else AttemptArrival.DEAD), None
        if known is not None:
            self._forget(known)
        self._entries[key.of] = LedgerEntry(key, gateway, base, deadline)
        return AttemptArrival.NEW, known.key if known is not None and not known.ended() else None

    def lives(self, key: AttemptKey) -> bool:
        return self._living(key) is not None

    def emit(self, emitted: Emitted) -> str | None:
        """Adds tokens. Returns the gateway to send them to, None if the attempt is not wanted any more."""
        entry = self._living(emitted.key)
        if entry is None or emitted.index > entry.base + len(entry.tokens):
            return None
        first = emitted.index - entry.base
        del entry.tokens[first:]
        entry.tokens += emitted.token_ids
        if emitted.scores is not None:
            entry.scores = entry.scores or ScoreLog(emitted.scores.top)
            entry.scores.replace(first, emitted.scores)
        entry.prompt_scores = entry.prompt_scores or emitted.prompt_scores
        entry.finish, entry.vector = emitted.finish, emitted.vector
        if emitted.stages is not None:
            entry.stages, entry.stages_sent = emitted.stages, False
        return self._owe(entry)

    def fail(self, key: AttemptKey, failure: AttemptFailure) -> str | None:
        """Fails an attempt. Returns the gateway to tell, None if the attempt is not wanted any more."""
        entry = self._living(key)
        if entry is None:
            return None
        entry.failure = failure
        return self._owe(entry)

    def note(self, key: AttemptKey, state: str) -> None:
        entry = self._living(key)
        if entry is not None:
            entry.state = state

    def owed(self, gateway: str, most: int) -> list[Emitted]:
        """Returns a gateway's next message: up to `count` tokens, of the longest waiting sequences first.

        Vectors count as tokens by their bytes. Empty if only failures are pending. Prompt scores may be large, so one
        result contains the scores of at most one prompt.
        """
        message: list[Emitted] = []
        for entry in self._owing.get(gateway, {}).values():
            if entry.sent < len(entry.tokens) or entry.finish is not None:
                message.append(entry.pending(most))
                most -= max(1, len(message[-1].token_ids), len(message[-1].vector) // VECTOR_BYTES_PER_TOKEN)
                if most <= 0 or message[-1].prompt_scores is not None:
                    break
        return message

    def failed(self, gateway: str) -> tuple[AttemptKey, AttemptFailure] | None:
        """Returns the gateway's first unsent failure, or None. Its tokens must be sent before."""
        for entry in self._owing.get(gateway, {}).values():
            if entry.failure is not None:
                return entry.key, entry.failure
        return None

    def sent(self, emitted: Iterable[Emitted]) -> None:
        """Moves the cursors after the tokens returned by `owed` were sent."""
        for each in emitted:
            entry = self._entries[each.key.of]
            entry.sent += len(each.token_ids)
            entry.end_sent = each.finish is not None
            entry.stages_sent = entry.stages_sent or each.stages is not None
            self._settle(entry)

    def failure_sent(self, key: AttemptKey) -> None:
        entry = self._entries[key.of]
        entry.end_sent = True
        self._settle(entry)

    def ask(self, key: AttemptKey, next_index: int) -> LedgerEntry | None:
        """Moves the cursor back to `next_index`, and returns the entry; None if the attempt is unknown."""
        entry = self._entries.get(key.of)
        if entry is None or entry.key != key:
            return None
        entry.sent = min(max(0, next_index - entry.base), len(entry.tokens))
        entry.end_sent = entry.stages_sent = False
        if entry.owed():
            self._owe(entry)
        return entry

    def cancel(self, key: AttemptKey, now: float) -> bool:
        """Leaves a tombstone, and removes this or a lower attempt. Returns whether one was alive."""
        sample = key.of
        entry = self._entries.get(sample)
        highest = max(key.attempt, self._dead.get(sample, (-1, 0.0))[0])
        self._dead[sample] = (highest, now + TOMBSTONE_TTL_S)
        self._dead.move_to_end(sample)
        while len(self._dead) > MAX_TOMBSTONES:
            self._dead.popitem(last=False)
        if entry is None or entry.key.attempt > key.attempt:
            return False
        living = not entry.ended()
        self._forget(entry)
        return living

    def cancelled(self, key: AttemptKey) -> bool:
        return self._dead.get(key.of, (-1, 0.0))[0] >= key.attempt

    def acknowledged(self, key: AttemptKey) -> LedgerEntry | None:
        """Removes and returns an entry whose end the gateway has received; None without such an entry."""
        entry = self._entries.get(key.of)
        if entry is None or entry.key.attempt > key.attempt:
            return None
        self._forget(entry)
        return entry

    def known_gateways(self) -> set[str]:
        return {entry.gateway for entry in self._entries.values()}

    def of_gateway(self, gateway: str) -> list[LedgerEntry]:
        return [entry for entry in self._entries.values() if entry.gateway == gateway]

    def forget(self, entries: list[LedgerEntry]) -> None:
        for entry in entries:
            self._forget(entry)

    def expire(self, now: float) -> None:
        """Drops old entries and tombstones. `now`: Redis server time, s."""
        while self._dead and next(iter(self._dead.values()))[1] < now:
            self._dead.popitem(last=False)
        self.forget([entry for entry in self._entries.values() if entry.deadline + DEADLINE_GRACE_S < now])

    def gateways(self) -> Iterator[str]:
        return iter([gateway for gateway, entries in self._owing.items() if entries])

    def __len__(self) -> int:
        return len(self._entries)

    def _living(self, key: AttemptKey) -> LedgerEntry | None:
        entry = self._entries.get(key.of)
        return entry if entry is not None and entry.key == key and not entry.ended() else None

    def _owe(self, entry: LedgerEntry) -> str:
        self._owing.setdefault(entry.gateway, {})[entry.key.of] = entry
        return entry.gateway

    def _settle(self, entry: LedgerEntry) -> None:
        if not entry.owed():
            self._owing.get(entry.gateway, {}).pop(entry.key.of, None)

    def _forget(self, entry: LedgerEntry) -> None:
        self._entries.pop(entry.key.of, None)
        owed = self._owing.get(entry.gateway)
        if owed is not None:
            owed.pop(entry.key.of, None)
            if not owed:
                del self._owing[entry.gateway]
