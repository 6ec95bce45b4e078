"""Defines the jobs that gateways put on Redis. Times in them are absolute seconds of the Redis server's clock.

A long prompt's ids are not in its job: they come over the gateway's connection, and the job has their digest.
"""

from typing import Annotated

from msgspec import Meta, Struct

from contracts.ids import AttemptKey, Count, Name
from contracts.messages.sampling import Limits, Sampling
from contracts.messages.wire import MessageDecoder


class Prompt(Struct, frozen=True, array_like=True):
    """Holds the tokens that samples begin with, and what goes with them wherever they go: job, handoff, sequence.

    `token_ids` is the client's prompt followed by what earlier attempts have emitted. (A deadline is not in here: it is
    absolute in a job, and a remainder in a message between workers.)
    """

    token_ids: list[int]
    prompt_tokens: int  # how many of `token_ids` are the client's
    salt: Name = ""  # the tenant's: KV is reused among requests of one salt only
    priority: int = 0  # the higher the number, the earlier a sequence gives way when KV blocks run out
    adapter: Name = ""  # digest of the adapter that computes them (`contracts/adapters.py`); empty: the model alone
    tenant: Name = ""  # whom its tokens are counted to where several wait; empty: nobody in particular
    weight: Annotated[float, Meta(gt=0, le=1e6)] = 1.0  # of the tenant's share among those of others

    @property
    def emitted(self) -> int:
        """Counts the tokens that earlier attempts have emitted; also the output index of the next one."""
        return len(self.token_ids) - self.prompt_tokens


class Body(Struct, frozen=True, array_like=True):
    """Stands in a job for its prompt's ids, which the gateway's connection brings (`contracts.messages.gateway`)."""

    tokens: Count
    digest: Annotated[bytes, Meta(min_length=32, max_length=32)]  # SHA-256 of the ids, packed


class Job(Struct, frozen=True, kw_only=True):
    """Tells a worker everything about a request; nobody has to ask back."""

    request: Name
    attempt: int
    sender: Name  # the gateway's epoch; answers go there
    receiver: Name  # the worker's epoch
    prompt: Prompt
    sampling: Sampling
    limits: Limits
    deadline: float  # Redis server time, s
    queued_at: float  # when the gateway added the job: Redis server time, s
    due: float = 0.0  # by when the first token is wanted: Redis server time, s; 0: there is no objective
    samples: tuple[int, ...] = (0,)  # which share the prompt; more than one only while nothing was emitted
    body: Body | None = None  # of a prompt whose ids do not come with the job

    @property
    def tokens(self) -> int:
        """Counts the tokens of the prompt, wherever they are."""
        return self.body.tokens if self.body is not None else len(self.prompt.token_ids)

    @property
    def emitted(self) -> int:
        """Counts those of them that earlier attempts have emitted; also the output index of the next one."""
        return self.tokens - self.prompt.prompt_tokens

    def attempts(self) -> list[AttemptKey]:
        """Names this attempt at each of the samples."""
        return [AttemptKey(self.request, sample, self.attempt) for sample in self.samples]


class PrefillJob(Job, frozen=True, kw_only=True, tag="prefill"):
    """Asks a prefill worker to compute the prompt, sample one token, and hand over to the named decode worker."""

    decode_epoch: str
    decode_address: str


class DecodeJob(Job, frozen=True, kw_only=True, tag="decode"):
    """Asks a worker to answer the whole request: a decode worker on the short path, else a prefill worker."""


AnyJob = PrefillJob | DecodeJob

decode_job: MessageDecoder[AnyJob] = MessageDecoder(AnyJob, "gateway to queue")
