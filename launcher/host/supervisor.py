"""Supervises the processes of one instance: starts and stops them in order, and restarts dead and hung processes.

One loop in one thread: it sleeps until output, the end of a child, a signal or a deadline. Once a second it checks the
children's signs of life.
"""

import selectors
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from contracts.kinds import LogFormat
from infra.process.supervised_life import SupervisedLife
from launcher.host.child import Child
from launcher.host.idle_unload import IdleWatch, ModelState
from launcher.host.process import FAILED_STAGE, READY_STAGE, Process
from launcher.host.pulse import Pulse
from launcher.host.signals import Signals
from launcher.host.supervised_service import MIN_LIFE_S, SupervisedService, restart_delay
from launcher.instance.instances import ServiceState
from launcher.instance.log_file import Log
from launcher.instance.service_lines import ServiceLines
from launcher.stages import StageDisplay

START_POLL_S = 0.05
PULSE_PERIOD_S = 1.0


class StartFailed(Exception):
    """A service ended or failed before it was ready."""


class StopAsked(Exception):
    """A stop signal arrived while services were starting."""


class Supervisor:
    """Owns the children of one instance."""

    def __init__(
        self,
        directory: Path,
        environment: Mapping[str, str],
        log: Log,
        stages: StageDisplay,
        signals: Signals,
        silent_seconds: float,
        changed: Callable[[tuple[ServiceState, ...]], None] = lambda states: None,
        form: LogFormat = "text",
    ) -> None:
        """`silent_seconds`: a child that is stopped or silent for longer is killed; 0: never.

        `changed` is called with the states of all services at every change.
        """
        self._directory = directory
        self._environment = environment
        self._log = log
        self._stages = stages
        self._signals = signals
        self._silent_seconds = silent_seconds
        self._changed = changed
        self._form: LogFormat = form
        self._states: tuple[ServiceState, ...] = ()
        self._kept: list[SupervisedService] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(signals.wakeup, selectors.EVENT_READ, None)

    def start(self, services: Iterable[Process]) -> None:
        """Starts services together and returns when all are ready. Raises `StartFailed` or `StopAsked`.

        A service that was ready once is restarted if it dies meanwhile, since others may wait for it.
        """
        starting: list[SupervisedService] = []
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
                    self._check(kept, time.monotonic())
            self._publish_states()
            self._sleep(START_POLL_S)
            if self._signals.asked_to_stop:
                raise StopAsked

    def keep(self, services: Iterable[Process]) -> None:
        """Starts services without waiting for them: `watch` restarts a service also if it dies before it is ready.

        Raises `StartFailed` if the host cannot start a process.
        """
        for service in services:
            self._kept.append(self._keep(service))

    def watch(self, idle: IdleWatch | None = None) -> None:
        """Restarts dead and hung processes until a stop signal. `idle` says when workers are not needed."""
        while not self._signals.asked_to_stop:
            now = time.monotonic()
            if idle is not None:
                self._follow(idle, now)
            for kept in self._kept:
                self._check(kept, now)
            self._publish_states()
            starting = any(not kept.ready and kept.restart_at is None for kept in self._kept)
            due = [kept.restart_at - now for kept in self._kept if kept.restart_at is not None]
            self._sleep(min([*due, 0.5 if starting else PULSE_PERIOD_S]))

    def _follow(self, idle: IdleWatch, now: float) -> None:
        """Ends the workers of an unloaded model, and starts them for the next request."""
        workers = [kept for kept in self._kept if kept.service.name in idle.workers]
        state = idle.look(all(kept.ready for kept in workers), now)
        resting = [kept for kept in workers if kept.rests_since is not None]
        if state is ModelState.UNLOADED and not resting:
            self._say(f"the model is unloaded after {idle.minutes:g} idle minutes; the next request loads it again")
            for kept in workers:
                kept.child.terminate()
                kept.ready, kept.was_ready, kept.restart_at, kept.rests_since = False, True, None, now
        elif state is ModelState.LOADING and resting and all(kept.child.output.closed for kept in resting):
            self._say("a request has come: the model is loaded again")
            for kept in resting:
                kept.rests_since = None
                self._restart(kept, now, again=0)

    def _say(self, sentence: str) -> None:
        self._stages.say(sentence)
        self._log.write(ServiceLines("baton", self._form).said(sentence, "INFO"))

    def _check(self, kept: SupervisedService, now: float) -> None:
        if kept.rests_since is not None:
            if kept.child.exit_status() is not None or now - kept.rests_since >= kept.service.grace:
                kept.child.kill()
                self._forget(kept.child)
        elif kept.restart_at is not None:
            if kept.restart_at <= now:
                self._restart(kept, now)
        elif kept.child.exit_status() is not None:
            self._bury(kept, now)
        elif (why := self._lifeless(kept, now)) is not None:
            self._bury(kept, now, why)
        elif not kept.ready:
            self._look_again(kept)

    def _publish_states(self) -> None:
        states = tuple(kept.state() for kept in self._kept)
        if states != self._states:
            self._states = states
            self._changed(states)

    @property
    def ready(self) -> bool:
        """Whether every child is ready. Safe to read from any thread."""
        return all(kept.ready for kept in self._kept)

    def stop(self, order: Sequence[Sequence[str]]) -> None:
        """Stops all children, group by group in `order`, then the others. A second signal kills without grace."""
        for names in order:
            self._stop([kept for kept in self._kept if kept.service.name in names])
        self._stop(self._kept)
        self._selector.close()

    def _stop(self, group: Sequence[SupervisedService]) -> None:
        for kept in group:
            kept.child.terminate()
        asked = self._signals.asked_to_stop
        deadline = time.monotonic() + max([kept.service.grace for kept in group], default=0.0)
        while any(kept.child.exit_status() is None for kept in group):
            left = deadline - time.monotonic()
            if left <= 0 or self._signals.asked_to_stop > asked:
                break
            self._sleep(min(left, START_POLL_S))  # outside the main thread there is no SIGCHLD
        for kept in group:
            kept.child.kill()
            self._forget(kept.child)

    def _keep(self, service: Process) -> SupervisedService:
        try:
            child = self._spawn(service)
        except OSError as error:
            raise StartFailed(f"{service.name} did not start: {error}") from None
        return SupervisedService(service, child, Pulse(service, child.pid), time.monotonic())

    def _spawn(self, service: Process, restarts: int = 0) -> Child:
        """Starts a process. Raises `OSError` if the host has no process, memory or descriptor left."""
        told = SupervisedLife(service.name, restarts).environment()
        child = Child(service, {**self._environment, **told}, self._directory, self._log, self._form)
        self._selector.register(child.output, selectors.EVENT_READ, child)
        return child

    def _forget(self, child: Child) -> None:
        if not child.output.closed:
            if child.output in self._selector.get_map():
                self._selector.unregister(child.output)
            child.close()

    def _sleep(self, seconds: float | None) -> None:
        for key, _ in self._selector.select(None if seconds is None else max(seconds, 0.0)):
            if key.data is None:
                self._signals.drain()
            elif not key.data.pump():
                self._selector.unregister(key.fileobj)

    def _look(self, kept: SupervisedService) -> None:
        name = kept.service.name
        status = kept.service.watch()
        if kept.child.exit_status() is not None or (status is not None and status.stage == FAILED_STAGE):
            if status is None or not status.error:
                kept.child.kill()
                kept.child.pump()
            why = status.error if status is not None and status.error else kept.child.why()
            self._stages.show(name, "failed")
            raise StartFailed(f"{name} did not start: {why}")
        if status is None:
            return
        if status.stage == READY_STAGE:
            kept.ready, kept.address = True, status.address
            self._stages.show(name, READY_STAGE)
        else:
            kept.stage = status.stage
            self._stages.show(name, status.stage, int(status.percent) if status.percent else None)

    def _look_again(self, kept: SupervisedService) -> None:
        status = kept.service.watch()
        kept.stage = status.stage if status is not None else "starting"
        if status is not None and kept.stage == READY_STAGE:
            kept.ready, kept.address = True, status.address
            self._stages.say(f"{kept.service.name} is ready{' again' if kept.was_ready else ''}")

    def _lifeless(self, kept: SupervisedService, now: float) -> str | None:
        seconds, how = kept.pulse.look(now, kept.ready)
        if not self._silent_seconds or seconds < self._silent_seconds:
            return None
        return f"{how} for {seconds:.0f} s, so it was killed: --silent-seconds {self._silent_seconds:g}"

    def _bury(self, kept: SupervisedService, now: float, why: str = "") -> None:
        """Kills a process and schedules its restart. `why`: reason, where the child itself gives none.

        A ready service that ends with status 0 was told to, as by `baton restart`: this is no early death.
        """
        told = kept.ready and not why and kept.child.exit_status() == 0
        kept.child.kill()  # the process group must end before its successor starts
        self._forget(kept.child)
        ended = "ended, as it was told to" if told else f"died ({why or kept.child.why()})"
        early = not told and now - kept.born < MIN_LIFE_S
        self._schedule_restart(kept, now, f"{kept.service.name} {ended}", early)

    def _schedule_restart(self, kept: SupervisedService, now: float, sentence: str, early: bool) -> None:
        kept.early_deaths = kept.early_deaths + 1 if early else 0
        delay = restart_delay(kept.early_deaths)
        kept.was_ready = kept.was_ready or kept.ready
        kept.ready = False
        kept.restart_at = now + delay
        sentence = f"{sentence}; it is started again {f'in {delay:.0f} s' if delay else 'at once'}"
        self._stages.say(sentence)
        self._log.write(ServiceLines(kept.service.name, self._form).said(sentence, "ERROR"))

    def _restart(self, kept: SupervisedService, now: float, again: int = 1) -> None:
        """Starts a new process. `again`: 0 if the last one was not missed, so that this is no restart."""
        kept.born = now
        try:
            kept.child = self._spawn(kept.service, kept.restarts + again)
        except OSError as error:
            why = f"{kept.service.name} cannot be started ({error.strerror or error})"
            self._schedule_restart(kept, now, why, early=True)
            return
        kept.restarts += again
        kept.pulse = Pulse(kept.service, kept.child.pid)
        kept.stage = "starting"
        kept.restart_at = None
