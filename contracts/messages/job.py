"""The jobs that gateways add to Redis streams. Times are absolute, in s of the Redis server's clock.

A long prompt's ids come over the gateway's connection; its job has their digest.
"""

from array import array
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct, structs

from contracts.errors import MessageError
from contracts.ids import AttemptKey, Count, Name
from contracts.messages.sampling import Limits, Sampling
from contracts.messages.wire import MessageDecoder


class Prompt(Struct, frozen=True, array_like=True):
    """A prompt's tokens, and the settings that follow it through job, handoff and sequence.

    `token_ids` is the client's prompt followed by the tokens that earlier attempts emitted. Deadlines are elsewhere:
    they are absolute in jobs, and remainders in messages between workers.
    """

    token_ids: Sequence[int]
    prompt_tokens: int  # number of the client's `token_ids`
    salt: Name = ""  # the tenant's: KV is shared only among requests of one salt
    priority: int = 0  # higher numbers are preempted first when KV blocks run out
    adapter: Name = ""  # its digest (`contracts/adapters.py`); empty: the model alone
    tenant: Name = ""  # charged for the tokens in fair queueing; empty: none
    weight: Annotated[float, Meta(gt=0, le=1e6)] = 1.0  # of the tenant in fair queueing

    @property
    def emitted(self) -> int:
        """Number of tokens that earlier attempts emitted, and so the next output index."""
        return len(self.token_ids) - self.prompt_tokens

    def packed(self) -> "Prompt":
        """Returns this prompt with ids that are C integers: copied, checked and hashed without an object for each.

        Itself, if they are. Raises `MessageError` for an id that is negative, or beyond 32 bits.
        """
        if isinstance(self.token_ids, array) and self.token_ids.typecode == "I":
            return self
        try:
            return structs.replace(self, token_ids=array("I", self.token_ids))
        except OverflowError:
            why = f"token ids from {min(self.token_ids)} to {max(self.token_ids)}, beyond those of any vocabulary"
            raise MessageError(why) from None


class Body(Struct, frozen=True, array_like=True):
    """Stands for a prompt's ids that the gateway's connection brings (`contracts.messages.gateway`)."""

    tokens: Count
    digest: Annotated[bytes, Meta(min_length=32, max_length=32)]  # SHA-256 of the ids, packed


class Job(Struct, frozen=True, kw_only=True):
    """A request for a worker, complete in itself."""

    request: Name
    attempt: int
    sender: Name  # the gateway's epoch
    receiver: Name  # the worker's epoch
    prompt: Prompt
    sampling: Sampling
    limits: Limits
    deadline: float  # Redis server time, s
    queued_at: float  # when the gateway added the job
    due: float = 0.0  # when the first token is due: Redis server time, s; 0: no objective
    samples: tuple[int, ...] = (0,)  # that share the prompt; several only before the first token
    body: Body | None = None  # if the prompt's ids do not come with the job

    @property
    def tokens(self) -> int:
        """The prompt's length in tokens."""
        return self.body.tokens if self.body is not None else len(self.prompt.token_ids)

    @property
    def emitted(self) -> int:
        """Number of tokens that earlier attempts emitted, and so the next output index."""
        return self.tokens - self.prompt.prompt_tokens

    def attempts(self) -> list[AttemptKey]:
        return [AttemptKey(self.request, sample, self.attempt) for sample in self.samples]


class PrefillJob(Job, frozen=True, kw_only=True, tag="prefill"):
    """Asks a prefill worker to compute the prompt, sample one token, and hand over to the named decode worker."""

    decode_epoch: str
    decode_address: str


class DecodeJob(Job, frozen=True, kw_only=True, tag="decode"):
    """Asks for a complete answer: of a decode worker (the short path), or of a prefill worker."""


AnyJob = PrefillJob | DecodeJob

decode_job: MessageDecoder[AnyJob] = MessageDecoder(AnyJob, "gateway to queue")
