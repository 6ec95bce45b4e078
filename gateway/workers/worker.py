"""The gateway's knowledge of one worker: its record, its newest report, prompts sent since, and its KV. Pure."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from msgspec import structs

from contracts.ids import NO_TICKET, AttemptKey, Ticket
from contracts.kv.spec import blocks_for
from contracts.messages.gateway import Question, Wanted
from gateway.workers.holders import BlockHolders
from gateway.workers.kept_blocks import KeptBlocks
from gateway.workers.prompt_keys import ShortKeys
from infra.redis.records import WorkerRecord
from infra.redis.worker_load import SpeculationCounts
from pricing.routes.backlog import Backlog, PromptWork
from pricing.routes.candidate import Candidate, WorkerKind
from pricing.routes.route import RouteRequest
from pricing.step_costs.steps import DecodeYield, StepCosts

YIELD_MEMORY_STEPS = 256  # number of decode steps whose weight equals all earlier steps' in the average yield of a step
UNREACHED_TOLD_S = 3.0  # seconds until a worker's record names a peer that it has reported as unreachable
Placed = tuple[str, int]  # work sent to a worker: a request's id, and the number of its attempt


class SentPrompt(NamedTuple):
    """Prompt that a worker is to compute, and whose job it may not have read yet."""

    prompt: PromptWork
    ticket: Ticket = NO_TICKET  # of its job on the worker's stream; NO_TICKET: the job is not there yet


class Worker:
    """One life of a worker, as this gateway sees it. `now` is local time, s."""

    def __init__(self, record: WorkerRecord) -> None:
        self.record = record
        self.kind = WorkerKind(record.role, record.content, record.device)
        self._own_sequences = 0
        self._usable = False
        self.welcomed = False  # it takes messages
        self.taken = NO_TICKET  # jobs of higher tickets wait on its stream
        self.late = False  # its answer, or its engine's, is overdue: used only if there is no other worker
        self.learned_at = 0.0  # local time, s, when the number of steps behind its costs last grew
        self.kept = KeptBlocks()  # blocks whose KV it has
        self.decode_yield = _yield(record.load.speculation)  # of its decode steps lately
        self._notices: Callable[[Worker], None] = _ignored
        self._others = record.load.running + record.load.waiting  # sequences of other gateways
        self._links = {link.peer: link.bytes_per_second for link in record.links}
        self._missed: dict[str, float] = {}  # peers that it has reported as unreachable, until when, local time, s
        self._reported: Backlog | None = None  # backlog of its newest Pong
        self._reported_at = 0.0  # when that came, local time, s
        self._stepped_at = 0.0  # when a first token last came, which ends a step, local time, s
        self._sent: dict[Placed, SentPrompt] = {}  # prompts that are not part of the reported backlog yet
        self._taken: dict[Placed, PromptWork] = {}  # own prompts in the reported backlog, without a first token yet
        self._begun = 0  # tokens of `_taken` that were computed when the backlog was reported
        self._coming: dict[Placed, int] = {}  # tokens of sequences whose KV will be handed over to it
        self._backlog: Backlog | None = None  # reported, plus prompts sent since; None: out of date

    def renew(self, record: WorkerRecord, now: float) -> None:
        """Takes a newer record. Sequences that it counts beyond this gateway's own belong to other gateways."""
        if record.load.costs.steps != self.costs.steps:
            self.learned_at = now
        counts = record.load.speculation.since(self.record.load.speculation)
        if counts.works > 0:
            newest, share = _yield(counts), counts.works / (counts.works + YIELD_MEMORY_STEPS)
            known = zip(self.decode_yield, newest, strict=True)
            self.decode_yield = DecodeYield(*[old + share * (new - old) for old, new in known])
        if record.load != self.record.load:
            self._others = max(0, record.load.running + record.load.waiting - self.own_sequences)
        self._links = {link.peer: link.bytes_per_second for link in record.links}
        self._backlog = None
        self.record = record
        self._notices(self)

    def joins(self, holders: BlockHolders[KeptBlocks], notices: Callable[["Worker"], None]) -> None:
        """Keeps `holders` in step with its blocks, and calls `notices` when its load changes, or whether it serves."""
        self._notices = notices
        self.kept.joins(holders)

    def leaves(self) -> Iterator[None]:
        """Ends the effect of `joins`; each step of the iterator removes some of its blocks from the index."""
        self._notices = _ignored
        return self.kept.leaves()

    @property
    def own_sequences(self) -> int:
        """Sequences of this gateway in progress there."""
        return self._own_sequences

    @own_sequences.setter
    def own_sequences(self, count: int) -> None:
        self._own_sequences = count
        self._notices(self)

    @property
    def usable(self) -> bool:
        """Requests may go there."""
        return self._usable

    @usable.setter
    def usable(self, usable: bool) -> None:
        if usable != self._usable:
            self._usable = usable
            self._notices(self)

    @property
    def epoch(self) -> str:
        return self.record.epoch

    @property
    def costs(self) -> StepCosts:
        return self.record.load.costs

    # what it is told: nothing, unless the kind of worker says how -----------------------------------------------------

    def ask(self, asked: Sequence[Question]) -> None:
        """Asks for tokens that have not come."""

    def cancel(self, key: AttemptKey) -> None:
        """Ends all attempts up to this one."""

    def piece(self, wanted: Wanted, ids: Sequence[int]) -> None:
        """Tells a part of a prompt, or nothing while much is unsaid: the worker asks again."""

    def ended(self, key: AttemptKey) -> None:
        """Acknowledges an attempt's end."""

    # where it can be used -------------------------------------------------------------------------------------------

    def serves(self, adapter: str) -> bool:
        """Returns whether new requests with this adapter's digest may go there; an empty digest is the base model."""
        if not self._usable or self.record.draining:
            return False
        return not adapter or any(held.digest == adapter for held in self.record.adapters)

    def misses(self, epoch: str, now: float) -> None:
        """Records that it cannot connect to a decode worker, which its record shows only some time later."""
        self._missed = {one: until for one, until in self._missed.items() if until > now}
        self._missed[epoch] = now + UNREACHED_TOLD_S

    def unreachable(self, now: float) -> Collection[str]:
        if not (self.record.unreached or self._missed):
            return ()
        return {one.peer for one in self.record.unreached} | {one for one, until in self._missed.items() if until > now}

    def full(self, tokens: int) -> bool:
        """Returns whether a sequence of `tokens` tokens would have to wait for KV blocks."""
        load = self.record.load
        free = load.blocks_total - load.blocks_used if self._reported is None else self._reported.free_blocks
        size = self.record.block_tokens
        wanted = blocks_for(tokens, size)
        if self._coming:
            wanted += sum([blocks_for(each, size) for each in self._coming.values()])
        return wanted > free

    def kv_use(self) -> float:
        """Returns the share of its KV blocks that are in use, 0 to 1."""
        load = self.record.load
        return load.blocks_used / load.blocks_total if load.blocks_total else 0.0

    # its backlog ----------------------------------------------------------------------------------------------------

    def load(self) -> int:
        """Returns the number of sequences there: this gateway's counted exactly, others' as last reported."""
        return self._own_sequences + self._others

    def reports(self, backlog: Backlog, taken: Ticket, now: float) -> None:
        """Takes its newest backlog, which includes jobs up to the ticket `taken`."""
        self._reported, self._reported_at, self._backlog = backlog, now, None
        told = [placed for placed, sent in self._sent.items() if NO_TICKET != sent.ticket <= taken]
        for placed in told:
            self._taken[placed] = self._sent.pop(placed).prompt
        self._begun = max(0, sum([prompt.tokens for prompt in self._taken.values()]) - backlog.tokens)

    def computes(self, placed: Placed, prompt: PromptWork) -> None:
        self._sent[placed] = SentPrompt(prompt)
        self._backlog = None

    def queued(self, placed: Placed, ticket: Ticket) -> None:
        if (sent := self._sent.get(placed)) is not None:
            self._sent[placed] = sent._replace(ticket=ticket)

    def awaits(self, placed: Placed, tokens: int) -> None:
        self._coming[placed] = tokens
        self._backlog = None

    def computed(self, placed: Placed, now: float) -> None:
        """Records a prompt's first token: the prompt waits no more, and a step has ended."""
        self._sent.pop(placed, None)
        self._backlog = None
        if (prompt := self._taken.pop(placed, None)) is None:
            return
        begun = min(self._begun, prompt.tokens)  # the prompt that ends first had begun first
        self._begun -= begun
        self._stepped_at = now
        if self._reported is not None:
            self._reported = self._reported.without(prompt._replace(tokens=prompt.tokens - begun))

    def settles(self, placed: Placed) -> None:
        """Removes work that has arrived, or never will: the worker's own reports cover it."""
        self._sent.pop(placed, None)
        self._taken.pop(placed, None)
        self._coming.pop(placed, None)
        self._backlog = None

    def awaited(self) -> int:
        """Counts tokens that are certainly not computed yet: the last step's tokens of each prompt of this gateway.

        Returns 0 for a decode worker: it computes prompts in chunks whose size only it knows.
        """
        if self.record.role == "decode":
            return 0
        most = self.costs.most_tokens or 1 << 30
        sent = [min(one.prompt.tokens, most) for one in self._sent.values()]
        return sum(sent) + sum([min(prompt.tokens, most) for prompt in self._taken.values()])

    def backlog(self, now: float) -> tuple[Backlog, float]:
        """Returns its backlog, including prompts that this gateway sent since the report, and the report's age, s."""
        if self._backlog is None:
            self._backlog = self._added_up(self.record.load.backlog if self._reported is None else self._reported)
        if self._reported is None:
            return self._backlog, 0.0
        return self._backlog, max(0.0, now - max(self._reported_at, self._stepped_at))

    def _added_up(self, backlog: Backlog) -> Backlog:
        if self._reported is not None and self._stepped_at > self._reported_at:
            backlog = structs.replace(backlog, age_ms=0.0)  # another step has begun
        if self._sent:
            backlog = backlog.and_prompts([sent.prompt for sent in self._sent.values()])
        if self._coming:
            backlog = backlog.and_sequences(len(self._coming), sum(self._coming.values()))
        return backlog

    # for a price ----------------------------------------------------------------------------------------------------

    def cached(self, keys: ShortKeys) -> int:
        """Returns the leading tokens of a prompt whose KV it has, in whole blocks."""
        block_tokens = self.record.block_tokens
        return block_tokens * self.kept.blocks(keys.get(block_tokens, ()))

    def candidate(self, request: RouteRequest, now: float, avoid: Collection[str] = ()) -> Candidate:
        """Returns a snapshot for the price of a request. `avoid`: epochs of workers to use only as a last resort."""
        record, load, own = self.record, self.record.load, self._own_sequences
        backlog, report_age = self.backlog(now)
        return Candidate(
            epoch=record.epoch,
            kind=self.kind,
            costs=load.costs,
            learned_at=self.learned_at,
            backlog=backlog,
            report_age=report_age,
            awaited=self.awaited(),
            decode_yield=self.decode_yield,
            cached=self.cached(request.keys),
            last_resort=(self.late, record.epoch in avoid, self.full(request.tokens)),
            load=own + self._others,
            kv_use=self.kv_use(),
            idle=not (own or backlog.sequences or backlog.prompts),
            location=record.place,
            token_bytes=record.memory.token_bytes,
            links=self._links,
            unreachable=self.unreachable(now),
        )


def _ignored(worker: Worker) -> None:
    """Does nothing: no directory lists the worker."""


def _yield(counts: SpeculationCounts) -> DecodeYield:
    """Returns the average yield of a sequence's decode step during these counts."""
    return DecodeYield(counts.step_tokens, counts.proposed / counts.works) if counts.works else DecodeYield()
