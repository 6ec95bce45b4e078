"""Holds what this gateway knows of one worker: its record, its newest figures, what it was sent since, and its KV."""

from typing import NamedTuple

from msgspec import structs

from contracts.ids import NO_TICKET, Ticket
from contracts.kv.spec import blocks_for
from gateway.workers.kept_blocks import KeptBlocks
from infra.redis.records import SpeculationCounts, WorkerRecord
from pricing.backlog import Ahead, Backlog
from pricing.steps import Guessing, StepCosts

WORKS = 256
"""Sequences' shares of decode steps that count as much as all that is known of guesses from before."""
TOLD_SECONDS = 3.0
"""What a worker has said of another one is in its record by then."""
Placed = tuple[str, int]
"""Names what was sent to a worker: a request's id, and the number of its attempt."""


class Sent(NamedTuple):
    """Describes a prompt that a worker is to compute, and may not know of yet."""

    prompt: Ahead
    ticket: Ticket = NO_TICKET  # of its job on the worker's stream; NO_TICKET: it is not there yet


class Worker:
    """Holds what this gateway knows of one worker: its latest record, and the sequences that it was given since."""

    def __init__(self, record: WorkerRecord) -> None:
        self.record = record
        self.ours = 0  # sequences of this gateway in progress there
        self.usable = False  # whether requests may go there
        self.late = False  # it, or its engine, should have answered by now: requests go there if nobody else is there
        self.learned_at = 0.0  # local time, s, when its costs were last seen to come of more steps than before
        self.kept = KeptBlocks()  # which blocks' KV it has
        self._others = record.load.running + record.load.waiting  # sequences of other gateways
        self.guessing = _guessing(record.load.speculation)  # what sequences have of its steps lately
        self._backlog: Backlog | None = None  # as its newest Pong has it
        self._reported_at = 0.0  # when that came, local time, s
        self._stepped_at = 0.0  # when a first token last came, which a step ends with, local time, s
        self._sent: dict[Placed, Sent] = {}  # prompts that are not part of its backlog yet
        self._taken: dict[Placed, Ahead] = {}  # prompts of ours that are, and whose first token has not come
        self._begun = 0  # tokens of those that were computed when it told its backlog
        self._missed: dict[str, float] = {}  # workers that it has said it cannot connect to, until when, local s
        self._coming: dict[Placed, int] = {}  # tokens of sequences whose KV will be handed over to it

    def renew(self, record: WorkerRecord, now: float) -> None:
        """Takes a newer record. What it counts beyond this gateway's own sequences belongs to other gateways."""
        if record.load.costs.steps != self.costs.steps:
            self.learned_at = now
        counts = record.load.speculation.since(self.record.load.speculation)
        if counts.works > 0:
            fresh, share = _guessing(counts), counts.works / (counts.works + WORKS)
            known = zip(self.guessing, fresh, strict=True)
            self.guessing = Guessing(*[before + share * (now - before) for before, now in known])
        if record.load != self.record.load:
            self._others = max(0, record.load.running + record.load.waiting - self.ours)
        self.record = record

    def misses(self, epoch: str, now: float) -> None:
        """Notes that it cannot connect to a decode worker, which its record tells only some time later."""
        self._missed = {one: until for one, until in self._missed.items() if until > now} | {epoch: now + TOLD_SECONDS}

    def reaches(self, epoch: str, now: float) -> bool:
        """Tells whether it can connect to a decode worker, as far as it knows."""
        told = all(one.peer != epoch for one in self.record.unreached)
        return told and self._missed.get(epoch, now) <= now

    def load(self) -> int:
        """Returns the number of sequences there: ours counted exactly, and others' as last reported."""
        return self.ours + self._others

    def has(self, adapter: str) -> bool:
        """Returns whether requests with this adapter's digest may go there; the empty one is the model alone."""
        return not adapter or any(held.digest == adapter for held in self.record.adapters)

    def full(self, tokens: int) -> bool:
        """Returns whether a sequence of so many tokens would have to wait for KV blocks."""
        load = self.record.load
        free = load.blocks_total - load.blocks_used if self._backlog is None else self._backlog.free_blocks
        coming = self._coming.values()
        return sum(blocks_for(each, self.record.block_tokens) for each in (tokens, *coming)) > free

    def idle(self, now: float) -> bool:
        """Tells whether the worker has nothing to do, and nothing is on its way to it, as far as this gateway knows."""
        backlog, _ = self.backlog(now)
        return not (self.ours or backlog.sequences or backlog.prompts)

    def kv_use(self) -> float:
        """Returns the share of its KV blocks that are in use, 0 to 1."""
        load = self.record.load
        return load.blocks_used / load.blocks_total if load.blocks_total else 0.0

    # what it has before it ------------------------------------------------------------------------------------------

    @property
    def costs(self) -> StepCosts:
        """Returns what its steps cost, as it has last said."""
        return self.record.load.costs

    def reports(self, backlog: Backlog, taken: Ticket, now: float) -> None:
        """Takes its newest figures; jobs up to the ticket `taken` are part of them."""
        self._backlog, self._reported_at = backlog, now
        told = [placed for placed, sent in self._sent.items() if NO_TICKET != sent.ticket <= taken]
        for placed in told:
            self._taken[placed] = self._sent.pop(placed).prompt
        self._begun = max(0, sum([prompt.tokens for prompt in self._taken.values()]) - backlog.tokens)

    def computes(self, placed: Placed, prompt: Ahead) -> None:
        """Notes that it will be sent a prompt."""
        self._sent[placed] = Sent(prompt)

    def queued(self, placed: Placed, ticket: Ticket) -> None:
        """Notes the ticket of a prompt that it was sent."""
        if (sent := self._sent.get(placed)) is not None:
            self._sent[placed] = sent._replace(ticket=ticket)

    def awaits(self, placed: Placed, tokens: int) -> None:
        """Notes that a sequence of so many tokens will be handed over to it."""
        self._coming[placed] = tokens

    def computed(self, placed: Placed, now: float) -> None:
        """Notes that a prompt's first token has come: it waits no more, and a step has ended."""
        self._sent.pop(placed, None)
        if (prompt := self._taken.pop(placed, None)) is None:
            return
        begun = min(self._begun, prompt.tokens)  # the first that ends is the one that had begun
        self._begun -= begun
        self._stepped_at = now
        if self._backlog is not None:
            self._backlog = self._backlog.without(prompt._replace(tokens=prompt.tokens - begun))

    def settles(self, placed: Placed) -> None:
        """Notes that it has what was sent or handed over to it, or never will: its own figures say the rest."""
        self._sent.pop(placed, None)
        self._taken.pop(placed, None)
        self._coming.pop(placed, None)

    def awaited(self) -> int:
        """Counts the tokens there that are surely not computed yet: of each prompt of ours its last step's.

        A decode worker computes prompts in pieces of a size that only it knows; of these nothing is sure.
        """
        if self.record.role == "decode":
            return 0
        most = self.costs.most_tokens or 1 << 30
        sent = [min(one.prompt.tokens, most) for one in self._sent.values()]
        return sum(sent) + sum([min(prompt.tokens, most) for prompt in self._taken.values()])

    def backlog(self, now: float) -> tuple[Backlog, float]:
        """Returns what it has before it, with what this gateway has sent since, and the s since it has said so."""
        if self._backlog is not None:
            backlog, elapsed = self._backlog, max(0.0, now - max(self._reported_at, self._stepped_at))
            if self._stepped_at > self._reported_at:
                backlog = structs.replace(backlog, age_ms=0.0)  # another step runs
        else:
            backlog, elapsed = self.record.load.backlog, 0.0
        if self._sent:
            backlog = backlog.and_prompts([sent.prompt for sent in self._sent.values()])
        if self._coming:
            backlog = backlog.and_sequences(len(self._coming), sum(self._coming.values()))
        return backlog, elapsed


def _guessing(counts: SpeculationCounts) -> Guessing:
    """Returns what a sequence had of a step while this was counted."""
    return Guessing(counts.step_tokens, counts.proposed / counts.works) if counts.works else Guessing()
