"""Keeps the services of one instance: starts them in order, watches them, restarts what died, stops them in order.

One loop in one thread: it sleeps until a child writes, a child ends, a signal comes or a time is due. Once a second it
looks whether those that run also live.
"""

import selectors
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.host.child import Child
from launcher.host.instances import ServiceState
from launcher.host.log_file import Log
from launcher.host.process import FAILED, READY, Process
from launcher.host.pulse import Pulse
from launcher.host.signals import Signals
from launcher.stages import Stages

LOOK_SECONDS = 0.05  # between two looks at a starting service
PULSE_SECONDS = 1.0  # between two looks at a service that runs
FIRST_DELAY = 1.0  # s before a restart after an early death; doubled by each that follows
LONGEST_DELAY = 30.0
EARLY_SECONDS = 60.0  # a life shorter than this was an early death


class StartFailed(Exception):
    """A service ended or failed before it was ready."""


class StopAsked(Exception):
    """A signal came while services were starting."""


@dataclass
class Kept:
    """Holds a service and its present life."""

    service: Process
    child: Child
    pulse: Pulse
    born: float
    early_deaths: int = 0
    ready: bool = False
    stage: str = "starting"
    restart_at: float | None = None

    def state(self) -> ServiceState:
        """Says how it is."""
        if self.restart_at is not None:
            return ServiceState(self.service.name, "died, and is started again")
        return ServiceState(self.service.name, READY if self.ready else self.stage, self.child.pid)


class Supervisor:
    """Owns the children of one instance from the first start to the last stop."""

    def __init__(
        self,
        directory: Path,
        environment: Mapping[str, str],
        log: Log,
        stages: Stages,
        signals: Signals,
        silent_seconds: float,
        changed: Callable[[tuple[ServiceState, ...]], None] = lambda states: None,
    ) -> None:
        """Begins without children. `silent_seconds`: for so long a child may be stopped or silent; 0: for ever.

        `changed` is told how the services are, whenever that changes.
        """
        self._directory = directory
        self._environment = environment
        self._log = log
        self._stages = stages
        self._signals = signals
        self._silent_seconds = silent_seconds
        self._changed = changed
        self._states: tuple[ServiceState, ...] = ()
        self._kept: list[Kept] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(signals.wakeup, selectors.EVENT_READ, None)

    def start(self, services: Iterable[Process]) -> None:
        """Starts services together and returns when all are ready. Raises `StartFailed` or `StopAsked`.

        A service that was ready once is kept meanwhile: it is started again if it dies, for others may wait for it.
        """
        starting: list[Kept] = []
        for service in services:
            starting.append(self._keep(service))
            self._kept.append(starting[-1])
            self._stages.show(service.name, "starting")
        never_ready = starting
        while not all(kept.ready for kept in starting):
            for kept in never_ready:
                self._look(kept)
            never_ready = [kept for kept in never_ready if not kept.ready]
            for kept in self._kept:
                if kept not in never_ready:
                    self._tend(kept, time.monotonic())
            self._tell()
            self._sleep(LOOK_SECONDS)
            if self._signals.asked_to_stop:
                raise StopAsked

    def watch(self) -> None:
        """Returns when a signal asks to stop; restarts what dies meanwhile."""
        while not self._signals.asked_to_stop:
            now = time.monotonic()
            for kept in self._kept:
                self._tend(kept, now)
            self._tell()
            starting = any(not kept.ready and kept.restart_at is None for kept in self._kept)
            due = [kept.restart_at - now for kept in self._kept if kept.restart_at is not None]
            self._sleep(min([*due, 0.5 if starting else PULSE_SECONDS]))

    def _tend(self, kept: Kept, now: float) -> None:
        """Restarts a service that was ready once, and has died or shows no life."""
        if kept.restart_at is not None:
            if kept.restart_at <= now:
                self._revive(kept, now)
        elif kept.child.exit_status() is not None:
            self._bury(kept, now)
        elif (why := self._lifeless(kept, now)) is not None:
            self._bury(kept, now, why)
        elif not kept.ready:
            self._look_again(kept)

    def _tell(self) -> None:
        states = tuple(kept.state() for kept in self._kept)
        if states != self._states:
            self._states = states
            self._changed(states)

    @property
    def ready(self) -> bool:
        """Tells whether every child is ready; any thread may ask."""
        return all(kept.ready for kept in self._kept)

    def stop(self, order: Sequence[Sequence[str]]) -> None:
        """Ends all children, group by group as `order` names them, then any other. A second signal ends the grace."""
        for names in order:
            self._stop([kept for kept in self._kept if kept.service.name in names])
        self._stop(self._kept)
        self._selector.close()

    def _stop(self, group: Sequence[Kept]) -> None:
        for kept in group:
            kept.child.terminate()
        asked = self._signals.asked_to_stop
        deadline = time.monotonic() + max([kept.service.grace for kept in group], default=0.0)
        while any(kept.child.exit_status() is None for kept in group):
            left = deadline - time.monotonic()
            if left <= 0 or self._signals.asked_to_stop > asked:
                break
            self._sleep(min(left, LOOK_SECONDS))  # no signal tells of a child's end, where this is not the main thread
        for kept in group:
            kept.child.kill()
            self._forget(kept.child)

    def _keep(self, service: Process) -> Kept:
        try:
            child = self._spawn(service)
        except OSError as error:
            raise StartFailed(f"{service.name} did not start: {error}") from None
        return Kept(service, child, Pulse(service, child.pid), time.monotonic())

    def _spawn(self, service: Process) -> Child:
        """Begins a life. Raises `OSError` where this host has no process, memory or descriptor left for it."""
        child = Child(service, self._environment, self._directory, self._log)
        self._selector.register(child.output, selectors.EVENT_READ, child)
        return child

    def _forget(self, child: Child) -> None:
        if not child.output.closed:
            if child.output in self._selector.get_map():
                self._selector.unregister(child.output)
            child.close()

    def _sleep(self, seconds: float | None) -> None:
        """Waits for output, a signal or the time, and writes the output to the log."""
        for key, _ in self._selector.select(None if seconds is None else max(seconds, 0.0)):
            if key.data is None:
                self._signals.drain()
            elif not key.data.pump():
                self._selector.unregister(key.fileobj)

    def _look(self, kept: Kept) -> None:
        """Shows how far a start is. Raises `StartFailed`."""
        name = kept.service.name
        status = kept.service.watch()
        if kept.child.exit_status() is not None or (status is not None and status.stage == FAILED):
            if status is None or not status.error:
                kept.child.kill()
                kept.child.pump()
            why = status.error if status is not None and status.error else kept.child.why()
            self._stages.show(name, "failed")
            raise StartFailed(f"{name} did not start: {why}")
        if status is None:
            return
        if status.stage == READY:
            kept.ready = True
            self._stages.show(name, READY)
        else:
            kept.stage = status.stage
            self._stages.show(name, status.stage, int(status.percent) if status.percent else None)

    def _look_again(self, kept: Kept) -> None:
        """Notes when a restarted service is ready; if it fails instead, its death will be noticed."""
        status = kept.service.watch()
        kept.stage = status.stage if status is not None else "starting"
        if kept.stage == READY:
            kept.ready = True
            self._stages.say(f"{kept.service.name} is ready again")

    def _lifeless(self, kept: Kept, now: float) -> str | None:
        """Returns a clause that says for how long a child has been stopped or silent, where that is too long."""
        seconds, how = kept.pulse.look(now, kept.ready)
        if not self._silent_seconds or seconds < self._silent_seconds:
            return None
        return f"{how} for {seconds:.0f} s, so it was killed: --silent-seconds {self._silent_seconds:g}"

    def _bury(self, kept: Kept, now: float, why: str = "") -> None:
        """Notes a death, and when the next life starts. `why`: a clause, where the child cannot say it itself."""
        kept.child.kill()  # what it started must not meet its next life, nor must itself where it is only stopped
        self._forget(kept.child)
        self._put_off(kept, now, f"{kept.service.name} died ({why or kept.child.why()})")

    def _put_off(self, kept: Kept, now: float, sentence: str) -> None:
        kept.early_deaths = kept.early_deaths + 1 if now - kept.born < EARLY_SECONDS else 0
        delay = restart_delay(kept.early_deaths)
        kept.ready = False
        kept.restart_at = now + delay
        self._stages.say(f"{sentence}; it is started again {f'in {delay:.0f} s' if delay else 'at once'}")

    def _revive(self, kept: Kept, now: float) -> None:
        kept.born = now
        try:
            kept.child = self._spawn(kept.service)
        except OSError as error:
            self._put_off(kept, now, f"{kept.service.name} cannot be started ({error.strerror or error})")
            return
        kept.pulse = Pulse(kept.service, kept.child.pid)
        kept.stage = "starting"
        kept.restart_at = None


def restart_delay(early_deaths: int) -> float:
    """Returns the seconds before a service is started again that has died early so many times in a row."""
    return min(FIRST_DELAY * 2 ** (early_deaths - 1), LONGEST_DELAY) if early_deaths else 0.0
