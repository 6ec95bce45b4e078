"""A request binds the samples of one prompt: one id, one numbering of attempts, one first job, and one record."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from msgspec import structs

from contracts.messages.job import AnyJob, DecodeJob, PrefillJob
from contracts.messages.packed_ids import IDS_PER_PIECE
from contracts.scores import Scores
from gateway.reports.traces import RequestTrace
from gateway.requests.attempt import Attempt
from gateway.requests.sample import Sample, State
from gateway.requests.stream import Stream
from infra.redis.records import MAX_RECORDED_ATTEMPTS
from pricing.routes.route import Route


class Request:
    """The samples of one request. Each sample has its own attempts and its own end."""

    def __init__(self, streams: Sequence[Stream], trace: RequestTrace | None = None) -> None:
        assert streams
        self.id = streams[0].sample.key.request
        self.received = streams[0].received  # local clock, s
        self.queued_at = self.received  # local clock, s
        self.streams = tuple(streams)
        self.samples = tuple(stream.sample for stream in streams)
        self.trace = trace  # None: not sampled
        self.attempts = 0
        self.tries: deque[Attempt] = deque(maxlen=MAX_RECORDED_ATTEMPTS)

    @property
    def ended(self) -> bool:
        return all(sample.ended for sample in self.samples)

    @property
    def used(self) -> int:
        """Counts the tokens of prompt and answers so far; 0 for a request that failed before its first token."""
        output = sum(len(sample.tokens) for sample in self.samples)
        if not output and all(sample.state is State.FAILED for sample in self.samples):
            return 0
        return self.samples[0].prompt.prompt_tokens + output

    @property
    def prompt_scores(self) -> Scores | None:
        """Returns the scores of all prompt tokens but the first; None if unwanted, or not received yet."""
        return next((sample.prompt_scores for sample in self.samples if sample.prompt_scores is not None), None)

    def begin(self, samples: Sequence[Sample], route: Route, now: float) -> Attempt:
        """Begins the next attempt, with these samples. Attempt numbers are unique, so that `Started` names one job."""
        self.attempts += 1
        attempt = Attempt(self.attempts, route, now, len(samples))
        self.tries.append(attempt)
        for sample in samples:
            sample.begin(attempt, now)
        return attempt

    def trying(self, attempt: Attempt) -> list[Sample]:
        return [sample for sample in self.samples if sample.attempt is attempt and not sample.ended]

    def beyond(self, attempt: int) -> list[int]:
        """Returns the samples that have ended or left this attempt behind: a Cancel up to it affects no others."""

        def left(sample: Sample) -> bool:
            return sample.ended or sample.attempt is None or sample.attempt.number > attempt

        return [sample.key.sample for sample in self.samples if left(sample)]

    def job(self, attempt: Attempt, gateway: str, decode_address: str, ahead: float) -> AnyJob:
        """Returns an attempt's job for its living samples: the prompt, and the delivered tokens.

        An attempt with a `body` has it in place of token ids. The server's clock is `ahead` s of the local clock.
        """
        trying, route, body = self.trying(attempt), attempt.route, attempt.body
        sample, admitted = trying[0], trying[0].admitted
        assert not sample.tokens or len(trying) == 1, "samples with tokens share no prompt"
        sampling, wanted = admitted.sampling, admitted.objective.ttft_ms
        if sampling.prompt_logprobs is not None and (self.prompt_scores is not None or sample.tokens):
            sampling = structs.replace(sampling, prompt_logprobs=None)  # the scores were received
        shared: dict[str, Any] = {
            "request": self.id,
            "attempt": attempt.number,
            "sender": gateway,
            "receiver": route.first(),
            "prompt": structs.replace(sample.prompt, token_ids=[] if body else sample.ids(0, sample.length)),
            "body": body,
            "sampling": sampling,
            "limits": admitted.limits,
            "deadline": sample.deadline + ahead,
            "queued_at": self.queued_at + ahead,
            "samples": tuple(each.key.sample for each in trying),
        }
        if wanted is not None:
            shared["due"] = self.received + wanted / 1000 + ahead
        if route.prefill:
            return PrefillJob(**shared, decode_epoch=route.decode, decode_address=decode_address)
        return DecodeJob(**shared)

    def piece(self, attempt: int, first: int) -> Sequence[int] | None:
        """Returns prompt ids from index `first` for the worker of an attempt; None if it needs none."""
        for sample in self.samples:
            trying = sample.attempt
            if trying is not None and trying.number == attempt and trying.body is not None and not sample.ended:
                return sample.ids(first, min(first + IDS_PER_PIECE, trying.body.tokens))
        return None

    def started(self, sender: str, attempt: int, now: float) -> bool:
        """Records that the job was taken. Returns False if no sample is in this attempt any more."""
        living = [sample for sample in self.samples if not sample.ended]
        return any([sample.started(sender, attempt, now) for sample in living])
