"""The samples of one request: one prompt, one id, one numbering of attempts, one job at first, and one record."""

from collections.abc import Sequence

from core.messages import AnyJob
from gateway.requests.sample import Attempt, Route
from gateway.requests.stream import Stream


class Group:
    """One request. Each of its samples has attempts and an end of its own."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        assert streams
        self.request = streams[0].request.key.request
        self.received = streams[0].received  # local clock, s
        self.queued_at = 0.0  # server clock, s
        self.streams = tuple(streams)
        self.attempts = 0

    @property
    def ended(self) -> bool:
        """Whether every sample has had its end."""
        return all(stream.request.ended for stream in self.streams)

    def begin(self, streams: Sequence[Stream], route: Route, now: float) -> Attempt:
        """The next attempt, with these samples. Its number is used once, so that `Started` names one job."""
        self.attempts += 1
        attempt = Attempt(self.attempts, route, now)
        for stream in streams:
            stream.request.begin(attempt, now)
        return attempt

    def trying(self, attempt: Attempt) -> list[Stream]:
        """The samples whose attempt this is, without those that have ended or gone on to another."""
        return [stream for stream in self.streams if stream.request.attempt is attempt and not stream.request.ended]

    def beyond(self, attempt: int) -> list[int]:
        """The samples that have ended or left this attempt behind: a Cancel up to it hits nothing else of theirs."""
        requests = [stream.request for stream in self.streams]
        return [one.key.sample for one in requests if one.ended or one.attempt is None or one.attempt.number > attempt]

    def job(self, attempt: Attempt, gateway: str, decode_address: str, deadline: float) -> AnyJob:
        """The attempt's job, for the samples that still try it."""
        trying = self.trying(attempt)
        samples = tuple(stream.request.key.sample for stream in trying)
        return trying[0].request.job(samples, gateway, decode_address, deadline, self.queued_at)

    def started(self, sender: str, attempt: int, now: float) -> bool:
        """The job was taken. False if it is nobody's any more."""
        living = [stream.request for stream in self.streams if not stream.request.ended]
        return any([request.started(sender, attempt, now) for request in living])
