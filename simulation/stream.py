"""An answer as its simulated client sees it: when its tokens come, and no text."""

from contracts.messages.gateway import Emitted
from contracts.messages.sampling import Finish
from gateway.metrics.gateway_metrics import Metrics
from gateway.requests.sample import Sample, State
from gateway.requests.stream import Stream
from gateway.text.detokenizer import BytePieces
from workloads.outcome import RequestOutcome

NO_TEXT = BytePieces(chr)


class SimulatedStream(Stream):
    """The times of a request's tokens, s since the simulation's start."""

    def __init__(self, metrics: Metrics, sample: Sample, received: float, streaming: bool) -> None:
        super().__init__(sample, NO_TEXT.stream(), received, streaming, metrics)
        self._gaps_ms: list[float] = []
        self._gap_counts: list[int] = []  # how often each of these came in a row

    def take(self, new: Emitted, now: float) -> tuple[Finish | None, bool]:
        if tokens := len(new.token_ids):
            if self._first is None:
                self._first = now
            else:
                self._gaps_ms.append(1000 * (now - self._last) / tokens)
                self._gap_counts.append(tokens)
            self._last = now
        return new.finish, False

    def outcome(self, now: float, sender: str) -> RequestOutcome:
        """Returns what its client has seen of the request, which has ended."""
        sample, due_s = self.sample, self.received
        timings = self.timings(now) if sample.state is State.FINISHED else None
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
            sender=sender,
        )
