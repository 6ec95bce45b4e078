"""One sequence of an engine: its tokens, its planned and computed lengths, and the blocks of its KV."""

from array import array
from dataclasses import dataclass, field
from enum import Enum
from math import inf

from contracts.errors import IllegalMove, MessageError
from contracts.ids import AttemptKey, SampleKey
from contracts.messages.job import Job, Prompt
from contracts.messages.sampling import Finish, Limits, Sampling
from contracts.scores import Scores
from engine.blocks.manager import Chains, Tables
from engine.plan import NO_PROPOSAL, PromptRows, Proposal
from engine.speculation.control.acceptance_rates import Trust
from engine.speculation.proposers.suffixes import Suffixes


class SequenceState(Enum):
    """State of a sequence, which determines the blocks that it holds."""

    BRANCH = "branch"  # waits for another sequence's first token, to start with it; holds no blocks
    WAITING = "waiting"  # waits for blocks; holds none
    LANDING = "landing"  # holds blocks for KV that arrives from a prefill worker
    RUNNING = "running"  # holds blocks, and is part of steps
    PARKED = "parked"  # prefill done, handoff under way; holds its blocks
    ENDED = "ended"  # holds blocks only while a launched step refers to them


_STATE_MOVES = {
    SequenceState.BRANCH: (SequenceState.RUNNING, SequenceState.ENDED),
    SequenceState.WAITING: (SequenceState.RUNNING, SequenceState.LANDING, SequenceState.ENDED),
    SequenceState.LANDING: (SequenceState.RUNNING, SequenceState.ENDED),
    SequenceState.RUNNING: (SequenceState.WAITING, SequenceState.PARKED, SequenceState.ENDED),
    SequenceState.PARKED: (SequenceState.ENDED,),
    SequenceState.ENDED: (),
}

DEFAULT_TTFT_S = 30.0  # from queueing to the first token, if the request has no objective
_UNKNOWN_SAMPLING = Sampling(seed=0)
_UNKNOWN_LIMITS = Limits(max_tokens=1)


@dataclass(slots=True, eq=False)
class Sequence:
    """One attempt at one sample: `tokens` is its prompt, output of earlier attempts, then its own output.

    A landing sequence gets its sampling and limits from the Commit when it is adopted; until then they are undefined.
    Raises `MessageError` unless 1 ≤ `prompt.prompt_tokens` ≤ token ids given.
    """

    key: AttemptKey
    gateway: str  # its epoch
    prompt: Prompt
    deadline: float  # s, on the clock that all calls' `now` is from
    sampling: Sampling = _UNKNOWN_SAMPLING
    limits: Limits = _UNKNOWN_LIMITS  # the request's, over all attempts
    hand_off: bool = False  # parks after the first token of this attempt, unless that token ends it
    landing: bool = False  # its KV has not arrived yet; `adopt` makes it False
    due: float = inf  # s, when its first token is due
    sent_block_tokens: int = 0  # tokens of the sender's blocks; 0: as many as here

    sample: SampleKey = field(init=False)  # of `key`
    tokens: "array[int]" = field(init=False)  # C integers: copied, hashed and compared without an object for each
    prompt_tokens: int = field(default=0, init=False)  # leading `tokens` from the client
    id: int = field(default=0, init=False)  # given by the scheduler, in order of arrival
    state: SequenceState = field(default=SequenceState.WAITING, init=False)
    blocks: Tables = field(default=(), init=False)  # by KV group
    chains: Chains = field(default=(), init=False)  # by KV group, the cache keys of its full blocks
    advance_at: int = field(default=0, init=False)  # number of computed tokens at which its windows move
    register_at: int = field(default=0, init=False)  # planned tokens at which the cache gets more full blocks
    looks_back: bool = field(default=False, init=False)  # as its sampling says, since it has run
    forked: bool = field(default=False, init=False)  # its last block may be in other tables too
    known: list[int] = field(default_factory=list, init=False)  # leading blocks of each table that are in the cache
    capacity: int = field(default=0, init=False)  # tokens that `blocks` hold
    planned: int = field(default=0, init=False)  # tokens whose KV is computed, or will be by a launched step
    computed: int = field(default=0, init=False)  # tokens whose KV is computed: `planned`, without the steps in flight
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
    since: int = field(default=0, init=False)  # oldest step from which any of its KV was computed
    end_length: int = field(default=0, init=False)  # tokens at which it ends ("length")
    plan_length: int = field(default=0, init=False)  # tokens at which planning for it stops on this engine
    branches: "list[Sequence]" = field(default_factory=list, init=False)  # wait for its first token
    parent: "Sequence | None" = field(default=None, init=False)  # the sequence whose branch it is
    abandoned: bool = field(default=False, init=False)  # released, but it continues until its branches have started
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
        self.sample = self.key.of
        self.tokens, self.prompt_tokens = array("I", self.prompt.token_ids), self.prompt.prompt_tokens
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
        """Number of tokens, including tokens being sampled by steps in flight."""
        return len(self.tokens) + self.pending

    @property
    def is_over(self) -> bool:
        return self.state is SequenceState.ENDED

    @property
    def left(self) -> int:
        return self.length - self.planned

    @property
    def wants_prompt_scores(self) -> bool:
        """Whether log-probabilities of the prompt are requested and not reported; they come with the first token."""
        return self.sampling.prompt_logprobs is not None and len(self.tokens) == self.prompt_tokens

    def prompt_rows(self, start: int, end: int) -> PromptRows | None:
        """Returns the prompt scores to compute in a step for tokens `start` … `end` - 1; None: none.

        Scores from before a preemption are not computed again.
        """
        first, behind = max(start, self.scored), min(end, self.prompt_tokens - 1)
        top = self.sampling.prompt_logprobs
        if top is None or first >= behind or not self.wants_prompt_scores:
            return None
        return PromptRows(first - start, self.tokens[first + 1 : behind + 1].tolist(), top)

    def keep_prompt_scores(self, scores: Scores) -> None:
        self.prompt_scores.append(scores)
        self.scored += len(scores)

    def take_prompt_scores(self) -> Scores | None:
        """Returns the scores of the prompt's tokens except the first, once, when its first token is drawn."""
        scores, self.prompt_scores = self.prompt_scores, []
        return Scores.joined(scores) if scores else None

    def move(self, state: SequenceState) -> None:
        """Changes the state, which nothing else does. Raises `IllegalMove`."""
        if state not in _STATE_MOVES[self.state]:
            raise IllegalMove(f"sequence {self.id} of {self.key.request}: {self.state.value} -> {state.value}")
        self.state = state

    def until_end(self, sampled: list[int]) -> tuple[list[int], Finish | None]:
        """Returns the next tokens up to the sequence's end, and how it ends; None: it goes on."""
        stops, room = self.limits.stop_token_ids, max(1, self.end_length - len(self.tokens))
        if stops:
            for at, token in enumerate(sampled[:room], 1):
                if token in stops:
                    return sampled[:at], "stop"
        return (sampled[:room], "length") if len(sampled) >= room else (sampled, None)
