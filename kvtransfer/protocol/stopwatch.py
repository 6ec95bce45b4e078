"""Times one handoff on its prefill side: times in s go in, durations in ms come out."""

from kvtransfer.events import HandoffTimes


class Stopwatch:
    """Runs from the handoff's opening. A stage that was not reached takes no time."""

    def __init__(self, now: float) -> None:
        self._opened = now
        self._grant = 0.0  # seconds from Open to Grant
        self._sent = 0.0  # seconds of sending, up to the last pause
        self._sending_since: float | None = None
        self._computed: float | None = None

    def granted(self, now: float) -> None:
        self._grant = now - self._opened

    def computed(self, now: float) -> None:
        """Records that the prompt is computed: from now on the handoff's time is exposed."""
        self._computed = now

    def sending(self, active: bool, now: float) -> None:
        """Records whether any payload is ready, or sent and not yet seen by the peer."""
        if active and self._sending_since is None:
            self._sending_since = now
        elif not active and self._sending_since is not None:
            self._sent += now - self._sending_since
            self._sending_since = None

    def read(self, now: float) -> HandoffTimes:
        sending = 0.0 if self._sending_since is None else now - self._sending_since
        exposed = 0.0 if self._computed is None else now - self._computed
        return HandoffTimes(1000 * self._grant, 1000 * (self._sent + sending), 1000 * exposed)
