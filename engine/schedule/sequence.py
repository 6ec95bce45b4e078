"""One sequence of an engine: its tokens, how many are planned and computed, and the blocks of their KV."""

from dataclasses import dataclass, field
from enum import Enum
from math import inf

from contracts.errors import IllegalMove, MessageError
from contracts.ids import AttemptKey
from contracts.messages.job import Job, Prompt
from contracts.messages.sampling import Finish, Limits, Sampling
from contracts.scores import Scores
from engine.blocks.manager import Chains, Tables
from engine.plan import NO_PROPOSAL, PromptRows, Proposal
from engine.speculation.control.acceptance_rates import Trust
from engine.speculation.proposers.suffixes import Suffixes


class SequenceState(Enum):
    """State of a sequence, which says what it holds."""

    BRANCH = "branch"  # waits for another sequence's first token, to begin with it; holds no blocks
    WAITING = "waiting"  # waits for blocks; holds none
    LANDING = "landing"  # holds blocks for KV that arrives from a prefill worker
    RUNNING = "running"  # holds blocks, and is part of steps
    PARKED = "parked"  # prefill done, handoff under way; holds its blocks
    ENDED = "ended"  # holds blocks only while a launched step still refers to them


_STATE_MOVES = {
    SequenceState.BRANCH: (SequenceState.RUNNING, SequenceState.ENDED),
    SequenceState.WAITING: (SequenceState.RUNNING, SequenceState.LANDING, SequenceState.ENDED),
    SequenceState.LANDING: (SequenceState.RUNNING, SequenceState.ENDED),
    SequenceState.RUNNING: (SequenceState.WAITING, SequenceState.PARKED, SequenceState.ENDED),
    SequenceState.PARKED: (SequenceState.ENDED,),
    SequenceState.ENDED: (),
}

DEFAULT_TTFT_S = 30.0  # from queueing to the first token, where there is no objective
_UNKNOWN_SAMPLING = Sampling(seed=0)
_UNKNOWN_LIMITS = Limits(max_tokens=1)


@dataclass(slots=True, eq=False)
class Sequence:
    """One attempt at one sample: `tokens` is its prompt, then what earlier attempts emitted, then what it emits.

    A landing sequence gets its sampling and limits from the Commit when it is adopted; until then they mean nothing.
    Raises `MessageError` unless 1 ≤ `prompt.prompt_tokens` ≤ token ids given.
    """

    key: AttemptKey
    gateway: str  # its epoch
    prompt: Prompt
    deadline: float  # s, on the clock of `now` everywhere
    sampling: Sampling = _UNKNOWN_SAMPLING
    limits: Limits = _UNKNOWN_LIMITS  # the request's, over all attempts
    hand_off: bool = False  # parks after the first token of this attempt, unless that ended it
    landing: bool = False  # its KV is still to arrive; `adopt` makes it False
    due: float = inf  # s, when its first token is wanted
    sent_block_tokens: int = 0  # tokens of the sender's blocks; 0: as many as here

    tokens: list[int] = field(default_factory=list, init=False)
    prompt_tokens: int = field(default=0, init=False)  # leading `tokens` that are the client's
    id: int = field(default=0, init=False)  # given by the scheduler, in order of arrival
    state: SequenceState = field(default=SequenceState.WAITING, init=False)
    blocks: Tables = field(default=(), init=False)  # by KV group
    chains: Chains = field(default=(), init=False)  # by KV group, the cache keys of its full blocks
    advance_at: int = field(default=0, init=False)  # computed tokens at which its windows move on
    register_at: int = field(default=0, init=False)  # planned tokens at which the cache learns of more full blocks
    forked: bool = field(default=False, init=False)  # its last block may be in other tables too
    known: list[int] = field(default_factory=list, init=False)  # leading blocks of each table that the cache knows
    capacity: int = field(default=0, init=False)  # tokens that `blocks` hold
    planned: int = field(default=0, init=False)  # tokens whose KV a launched step computes, or has
    computed: int = field(default=0, init=False)  # tokens whose KV is there: planned, without the steps in flight
    pending: int = field(default=0, init=False)  # tokens that steps in flight sample
    drafted: int = field(default=0, init=False)  # draft tokens that a step in flight verifies
    proposed: Proposal = field(default=NO_PROPOSAL, init=False)  # the executor's, for the next step
    handed_state: bytes = field(default=b"", init=False)  # hidden state from another worker, of the token before …
    handed_state_at: int = field(default=0, init=False)  # … this place
    evidence: int = field(default=0, init=False)  # of the first draft token of a step in flight: see `Proposal`
    trust: Trust = field(default_factory=Trust, init=False)  # record of its draft tokens
    suffixes: Suffixes | None = field(default=None, init=False)  # index of its text, if draft tokens come from it
    in_flight: int = field(default=0, init=False)  # launched steps that refer to this sequence
    admitted_length: int = field(default=0, init=False)  # tokens when its blocks were last taken
    since: int = field(default=0, init=False)  # the oldest planned step of what its KV is computed from
    end_length: int = field(default=0, init=False)  # tokens at which it ends ("length")
    plan_length: int = field(default=0, init=False)  # tokens at which this engine plans nothing more for it
    branches: "list[Sequence]" = field(default_factory=list, init=False)  # wait for its first token
    parent: "Sequence | None" = field(default=None, init=False)  # the sequence whose branch it is
    abandoned: bool = field(default=False, init=False)  # released, but it goes on until its branches have begun
    preemptions: int = field(default=0, init=False)  # how often it was preempted
    lost_blocks: int = field(default=0, init=False)  # full blocks whose KV was there when it was last preempted
    to_compute: int = field(default=0, init=False)  # tokens without KV here when it was last queued
    cached_tokens: int = field(default=0, init=False)  # tokens found in the cache at its first admission
    held_blocks: tuple[int, ...] = field(default=(), init=False)  # by KV group, leading blocks found in the cache
    prompt_scores: list[Scores] = field(default_factory=list, init=False)  # in order, not reported yet
    scored: int = field(default=0, init=False)  # leading prompt tokens whose successors have scores
    admitted_at: float = field(default=0.0, init=False)  # s, when it first got its blocks
    first_token_at: float = field(default=0.0, init=False)  # s, when this engine sampled this attempt's first token

    def __post_init__(self) -> None:
        self.tokens, self.prompt_tokens = list(self.prompt.token_ids), self.prompt.prompt_tokens
        if not 1 <= self.prompt_tokens <= len(self.tokens):
            raise MessageError(
                f"request {self.key.request}: prompt of {self.prompt_tokens} tokens in {len(self.tokens)} token ids"
            )

    @classmethod
    def of_job(cls, job: Job, key: AttemptKey, *, hand_off: bool) -> "Sequence":
        due = job.due or job.queued_at + DEFAULT_TTFT_S
        return cls(key, job.sender, job.prompt, job.deadline, job.sampling, job.limits, hand_off=hand_off, due=due)

    @property
    def emitted(self) -> int:
        """Output tokens so far, over all attempts; also the output index of the next one."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def length(self) -> int:
        """Tokens, those that steps in flight sample included."""
        return len(self.tokens) + self.pending

    @property
    def is_over(self) -> bool:
        return self.state is SequenceState.ENDED

    @property
    def left(self) -> int:
        """Tokens that no step has planned yet."""
        return self.length - self.planned

    @property
    def wants_prompt_scores(self) -> bool:
        """Whether log-probabilities of the prompt are wanted, which are reported with the first token of all."""
        return self.sampling.prompt_logprobs is not None and len(self.tokens) == self.prompt_tokens

    def prompt_rows(self, start: int, end: int) -> PromptRows | None:
        """Returns the prompt scores to compute in a step for tokens `start` … `end` - 1; None: none.

        Scores from before a preemption are not computed again.
        """
        first, behind = max(start, self.scored), min(end, self.prompt_tokens - 1)
        top = self.sampling.prompt_logprobs
        if top is None or first >= behind or not self.wants_prompt_scores:
            return None
        return PromptRows(first - start, self.tokens[first + 1 : behind + 1], top)

    def keep_prompt_scores(self, scores: Scores) -> None:
        self.prompt_scores.append(scores)
        self.scored += len(scores)

    def take_prompt_scores(self) -> Scores | None:
        """Returns the scores of the prompt's tokens but the first, once, when its first token is drawn."""
        scores, self.prompt_scores = self.prompt_scores, []
        return Scores.joined(scores) if scores else None

    def move(self, state: SequenceState) -> None:
        """Enters another state; the only way to change it. Raises `IllegalMove`."""
        if state not in _STATE_MOVES[self.state]:
            raise IllegalMove(f"sequence {self.id} of {self.key.request}: {self.state.value} -> {state.value}")
        self.state = state

    def finish_after(self, token: int, length: int) -> Finish | None:
        """Returns how `token`, as the last of `length` tokens, ends the sequence; None: it goes on."""
        if token in self.limits.stop_token_ids:
            return "stop"
        return "length" if length >= self.end_length else None
