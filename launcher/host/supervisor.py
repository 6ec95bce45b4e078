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
        self._services: list[SupervisedService] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(signals.wakeup, selectors.EVENT_READ, None)

    def start(self, processes: Iterable[Process]) -> None:
        """Starts services together and returns when all are ready. Raises `StartFailed` or `StopAsked`.

        A service that was ready once is restarted if it dies meanwhile, since others may wait for it.
        """
        starting: list[SupervisedService] = []
        for process in processes:
            starting.append(self._supervised(process))
            self._services.append(starting[-1])
            self._stages.show(process.name, "starting")
        never_ready = starting
        while not all(service.ready for service in starting):
            for service in never_ready:
                self._check_start(service)
            never_ready = [service for service in never_ready if not service.ready]
            for service in self._services:
                if service not in never_ready:
                    self._check(service, time.monotonic())
            self._publish_states()
            self._sleep(START_POLL_S)
            if self._signals.asked_to_stop:
                raise StopAsked

    def start_without_waiting(self, processes: Iterable[Process]) -> None:
        """Starts services without waiting for them: `watch` restarts a service also if it dies before it is ready.

        Raises `StartFailed` if the host cannot start a process.
        """
        for process in processes:
            self._services.append(self._supervised(process))

    def watch(self, idle: IdleWatch | None = None) -> None:
        """Restarts dead and hung processes until a stop signal. `idle` says when workers are not needed."""
        while not self._signals.asked_to_stop:
            now = time.monotonic()
            if idle is not None:
                self._follow_idle_state(idle, now)
            for service in self._services:
                self._check(service, now)
            self._publish_states()
            starting = any(not service.ready and service.restart_at is None for service in self._services)
            due = [service.restart_at - now for service in self._services if service.restart_at is not None]
            self._sleep(min([*due, 0.5 if starting else PULSE_PERIOD_S]))

    def _follow_idle_state(self, idle: IdleWatch, now: float) -> None:
        """Ends the workers of an unloaded model, and starts them for the next request."""
        workers = [service for service in self._services if service.process.name in idle.workers]
        state = idle.look(all(service.ready for service in workers), now)
        resting = [service for service in workers if service.rests_since is not None]
        if state is ModelState.UNLOADED and not resting:
            self._say(f"the model is unloaded after {idle.minutes:g} idle minutes; the next request loads it again")
            for service in workers:
                service.child.terminate()
                service.ready, service.was_ready, service.restart_at, service.rests_since = False, True, None, now
        elif state is ModelState.LOADING and resting and all(service.child.output.closed for service in resting):
            self._say("a request has come: the model is loaded again")
            for service in resting:
                service.rests_since = None
                self._restart(service, now, counts_as=0)

    def _say(self, sentence: str) -> None:
        self._stages.say(sentence)
        self._log.write(ServiceLines("baton", self._form).message_line(sentence, "INFO"))

    def _check(self, service: SupervisedService, now: float) -> None:
        if service.rests_since is not None:
            if service.child.exit_status() is not None or now - service.rests_since >= service.process.grace:
                service.child.kill()
                self._close_output(service.child)
        elif service.restart_at is not None:
            if service.restart_at <= now:
                self._restart(service, now)
        elif service.child.exit_status() is not None:
            self._handle_death(service, now)
        elif (why := self._hang_reason(service, now)) is not None:
            self._handle_death(service, now, why)
        elif not service.ready:
            self._check_restart(service)

    def _publish_states(self) -> None:
        states = tuple(service.state() for service in self._services)
        if states != self._states:
            self._states = states
            self._changed(states)

    @property
    def ready(self) -> bool:
        """Whether every child is ready. Safe to read from any thread."""
        return all(service.ready for service in self._services)

    def stop(self, order: Sequence[Sequence[str]]) -> None:
        """Stops all children, group by group in `order`, then the others. A second signal kills without grace."""
        for names in order:
            self._stop([service for service in self._services if service.process.name in names])
        self._stop(self._services)
        self._selector.close()

    def _stop(self, group: Sequence[SupervisedService]) -> None:
        for service in group:
            service.child.terminate()
        asked = self._signals.asked_to_stop
        deadline = time.monotonic() + max([service.process.grace for service in group], default=0.0)
        while any(service.child.exit_status() is None for service in group):
            left = deadline - time.monotonic()
            if left <= 0 or self._signals.asked_to_stop > asked:
                break
            self._sleep(min(left, START_POLL_S))  # outside the main thread there is no SIGCHLD
        for service in group:
            service.child.kill()
            self._close_output(service.child)

    def _supervised(self, process: Process) -> SupervisedService:
        try:
            child = self._spawn(process)
        except OSError as error:
            raise StartFailed(f"{process.name} did not start: {error}") from None
        return SupervisedService(process, child, Pulse(process, child.pid), time.monotonic())

    def _spawn(self, process: Process, restarts: int = 0) -> Child:
        """Starts a process. Raises `OSError` if the host has no process, memory or descriptor left."""
        told = SupervisedLife(process.name, restarts).environment()
        child = Child(process, {**self._environment, **told}, self._directory, self._log, self._form)
        self._selector.register(child.output, selectors.EVENT_READ, child)
        return child

    def _close_output(self, child: Child) -> None:
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

    def _check_start(self, service: SupervisedService) -> None:
        name = service.process.name
        status = service.process.watch()
        if service.child.exit_status() is not None or (status is not None and status.stage == FAILED_STAGE):
            if status is None or not status.error:
                service.child.kill()
                service.child.pump()
            why = status.error if status is not None and status.error else service.child.why()
            self._stages.show(name, "failed")
            raise StartFailed(f"{name} did not start: {why}")
        if status is None:
            return
        if status.stage == READY_STAGE:
            service.ready, service.address = True, status.address
            self._stages.show(name, READY_STAGE)
        else:
            service.stage = status.stage
            self._stages.show(name, status.stage, int(status.percent) if status.percent else None)

    def _check_restart(self, service: SupervisedService) -> None:
        status = service.process.watch()
        service.stage = status.stage if status is not None else "starting"
        if status is not None and service.stage == READY_STAGE:
            service.ready, service.address = True, status.address
            self._stages.say(f"{service.process.name} is ready{' again' if service.was_ready else ''}")

    def _hang_reason(self, service: SupervisedService, now: float) -> str | None:
        seconds, how = service.pulse.look(now, service.ready)
        if not self._silent_seconds or seconds < self._silent_seconds:
            return None
        return f"{how} for {seconds:.0f} s, so it was killed: --silent-seconds {self._silent_seconds:g}"

    def _handle_death(self, service: SupervisedService, now: float, why: str = "") -> None:
        """Kills a process and schedules its restart. `why`: reason, where the child itself gives none.

        A ready service that ends with status 0 was told to, as by `baton restart`: this is no early death.
        """
        told = service.ready and not why and service.child.exit_status() == 0
        service.child.kill()  # the process group must end before its successor starts
        self._close_output(service.child)
        ended = "ended, as it was told to" if told else f"died ({why or service.child.why()})"
        early = not told and now - service.born < MIN_LIFE_S
        self._schedule_restart(service, now, f"{service.process.name} {ended}", early)

    def _schedule_restart(self, service: SupervisedService, now: float, sentence: str, early: bool) -> None:
        service.early_deaths = service.early_deaths + 1 if early else 0
        delay = restart_delay(service.early_deaths)
        service.was_ready = service.was_ready or service.ready
        service.ready = False
        service.restart_at = now + delay
        sentence = f"{sentence}; it is started again {f'in {delay:.0f} s' if delay else 'at once'}"
        self._stages.say(sentence)
        self._log.write(ServiceLines(service.process.name, self._form).message_line(sentence, "ERROR"))

    def _restart(self, service: SupervisedService, now: float, counts_as: int = 1) -> None:
        """Starts a new process. `counts_as`: restarts that are counted; 0 for a model that is loaded again."""
        service.born = now
        try:
            service.child = self._spawn(service.process, service.restarts + counts_as)
        except OSError as error:
            why = f"{service.process.name} cannot be started ({error.strerror or error})"
            self._schedule_restart(service, now, why, early=True)
            return
        service.restarts += counts_as
        service.pulse = Pulse(service.process, service.child.pid)
        service.stage = "starting"
        service.restart_at = None
