"""Unloads the model of an idle instance, and loads it again for the next request (`--idle-unload MINUTES`).

The workers end, so weights and KV are released; the gateways stay. A file tells them to have requests wait: it is there
before the workers end, until they are ready again. The gateways' status files tell how long they are idle.
"""

from collections.abc import Iterable, Sequence
from enum import Enum, auto
from pathlib import Path

from infra.process.status import BEAT_SECONDS, read_status

SETTLE_S = 2.5 * BEAT_SECONDS
"""Seconds from the file until the workers end: by then gateways have reported all requests that came before it."""
SECONDS_PER_MINUTE = 60.0


class ModelState(Enum):
    LOADED = auto()
    SETTLING = auto()  # requests wait already; the model stays loaded if one has come
    UNLOADED = auto()
    LOADING = auto()


FILE_TEXTS = {
    ModelState.SETTLING: "unloaded",
    ModelState.UNLOADED: "unloaded",
    ModelState.LOADING: "loading again",
}
"""What the file says; a loaded model has no file."""


class IdleUnload:
    """Decides when an idle model is unloaded and loaded. Pure; `now` is local time in s."""

    def __init__(self, minutes: float, now: float) -> None:
        self._limit = minutes * SECONDS_PER_MINUTE
        self._busy_at = now  # a request was in progress, or the model was loaded
        self._since = now
        self.state = ModelState.LOADED

    def look(self, idle: Iterable[float], workers_ready: bool, now: float) -> ModelState:
        """Returns the next state. `idle`: seconds since each gateway's last request; gateways without any are left out.

        `workers_ready`: whether all workers are.
        """
        self._busy_at = max([self._busy_at, *(now - seconds for seconds in idle)])
        match self.state:
            case ModelState.LOADED if now - self._busy_at >= self._limit and workers_ready:
                self._becomes(ModelState.SETTLING, now)
            case ModelState.SETTLING if self._busy_at > self._since:
                self._becomes(ModelState.LOADED, now)
            case ModelState.SETTLING if now - self._since >= SETTLE_S:
                self._becomes(ModelState.UNLOADED, now)
            case ModelState.UNLOADED if self._busy_at > self._since:
                self._becomes(ModelState.LOADING, now)
            case ModelState.LOADING if workers_ready:
                self._busy_at = now
                self._becomes(ModelState.LOADED, now)
        return self.state

    def _becomes(self, state: ModelState, now: float) -> None:
        self.state, self._since = state, now


class IdleWatch:
    """Carries the decisions out, but for the workers, which are the supervisor's."""

    def __init__(
        self, minutes: float, file: Path, workers: Sequence[str], gateways: Sequence[Path], now: float
    ) -> None:
        """`file`: what gateways look for; `workers`: names; `gateways`: their status files."""
        self.minutes = minutes
        self.workers = workers
        self._file = file
        self._gateways = gateways
        self._decides = IdleUnload(minutes, now)

    def look(self, workers_ready: bool, now: float) -> ModelState:
        """Looks at the gateways, and writes or removes the file. On a full disk the model stays loaded."""
        before = self._decides.state
        statuses = [status for path in self._gateways if (status := read_status(path)) is not None]
        state = self._decides.look([one.idle_s for one in statuses if one.idle_s is not None], workers_ready, now)
        if state is before:
            return state
        if state is ModelState.LOADED:
            self._file.unlink(missing_ok=True)
            return state
        try:
            part = self._file.with_suffix(".part")
            part.write_text(FILE_TEXTS[state])
            part.replace(self._file)
        except OSError:
            if state is ModelState.SETTLING:
                self._decides = IdleUnload(self.minutes, now)
        return self._decides.state
