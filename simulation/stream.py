"""An answer as its simulated client sees it: when its tokens come, and no text."""

from contracts.messages.gateway import Emitted
from contracts.messages.sampling import Finish
from contracts.slo import Timings
from gateway.metrics.gateway_metrics import Metrics
from gateway.requests.sample import Sample, State
from gateway.requests.stream import Stream
from gateway.text.detokenizer import BytePieces
from simulation.senders import SimulatedSender
from workloads.outcome import RequestOutcome
from workloads.request import TimedRequest

NO_TEXT = BytePieces(chr)


class SimulatedStream(Stream):
    """The times of a request's tokens, s since the simulation's start."""

    def __init__(self, timed: TimedRequest, sender: SimulatedSender, metrics: Metrics, sample: Sample) -> None:
        super().__init__(sample, NO_TEXT.stream(), timed.due_s, False, metrics)
        self.then = timed.request.then
        self.sender = sender
        self._first_s = self._last_s = 0.0  # when its first and its last token so far came
        self._gaps_ms: list[float] = []
        self._gap_counts: list[int] = []  # how often each of these came in a row

    def take(self, new: Emitted, now: float) -> tuple[Finish | None, bool]:
        if tokens := len(new.token_ids):
            if not self._first_s:
                self._first_s = now
            else:
                self._gaps_ms.append(1000 * (now - self._last_s) / tokens)
                self._gap_counts.append(tokens)
            self._last_s = now
        return new.finish, False

    def outcome(self, now: float) -> RequestOutcome:
        """Returns what its client has seen of the request, which has ended."""
        sample, due_s = self.sample, self.received
        timings = None
        if sample.state is State.FINISHED:
            timings = Timings(1000 * (self._first_s - due_s), 1000 * (now - due_s), len(sample.tokens))
        return RequestOutcome(
            due_s=due_s,
            sent_s=due_s,
            ended_s=now,
            timings=timings,
            gaps_ms=tuple(self._gaps_ms),
            gap_counts=tuple(self._gap_counts),
            prompt_tokens=len(sample.prompt.token_ids),
            cached_tokens=sample.stages.cached_tokens,
            error="" if timings is not None else sample.reason,
            sender=self.sender.key_name,
        )
