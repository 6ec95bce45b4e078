"""Runs one service as a Ray actor: a supervisor in a thread, with the service's process as its only child.

The kernel kills the process when the thread ends for any reason (`host/child.py`), so a killed actor leaves no process
behind. The supervisor restarts a process that dies; Ray restarts an actor that dies, on this node or another.
"""

import os
import threading
from pathlib import Path

import ray

from contracts.errors import BatonError
from infra.process.status import read_status
from launcher.host.process import READY_STAGE
from launcher.host.signals import Signals
from launcher.host.supervised_service import FIRST_RESTART_DELAY_S, MAX_RESTART_DELAY_S
from launcher.host.supervisor import StartFailed, StopAsked, Supervisor
from launcher.instance.held_file import HeldFile
from launcher.instance.log_file import InheritedFile, LossyLog
from launcher.on_ray.node.process import OWNER_FILE, advertised, make_directory, make_process, node_environment
from launcher.on_ray.node.restarted import was_restarted
from launcher.on_ray.order import Order
from launcher.on_ray.overview import ActorReport
from launcher.on_ray.sentence_log import RecordedStages


class ServiceActor:
    """Owns one process of the deployment on the node of Ray's choice."""

    def __init__(self, order: Order) -> None:
        """Starts the process at once. A restarted actor repeats a failed start."""
        self._order = order
        self._node = ray.get_runtime_context().get_node_id()
        self._restarted = was_restarted()
        self._address = ray.util.get_node_ip_address()
        self._stages = RecordedStages()
        self._failure = ""
        self._supervisor: Supervisor | None = None
        self._status_file: Path | None = None
        self._signals = Signals()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._live, name=order.name)
        self._thread.start()

    def __repr__(self) -> str:
        """Ray writes this name before each line of the actor's log."""
        return self._order.name

    def report(self, heard: int) -> ActorReport:
        """Returns the state of the process, with its sentences but the first `heard`, which the caller has."""
        stages, status = self._stages, read_status(self._status_file) if self._status_file is not None else None
        stage, percent = stages.stage, stages.percent
        if stage == READY_STAGE and self._supervisor is not None and not self._supervisor.ready:
            stage = status.stage if status is not None and status.stage != READY_STAGE else "starting again"
        return ActorReport(
            node=self._node,
            address=self._address,
            stage=stage,
            percent=percent if stage != READY_STAGE else None,
            failure=self._failure,
            endpoint=advertised(self._order, status, self._address),
            sentences=stages.said.since(heard),
            said=stages.said.count,
        )

    def stop(self) -> None:
        """Drains and ends the process; returns when it has ended."""
        self._stopped.set()
        self._signals.ask_to_stop()
        self._thread.join()

    def _live(self) -> None:
        delay = FIRST_RESTART_DELAY_S
        while not self._stopped.is_set():
            self._failure = self._supervise()
            if not self._restarted or self._stopped.is_set():
                return
            self._stages.say(f"{self._failure}; it is tried again in {delay:.0f} s")
            self._stopped.wait(delay)
            delay = min(2 * delay, MAX_RESTART_DELAY_S)

    def _supervise(self) -> str:
        """Runs the process until `stop`. Returns why the process did not start, or ''."""
        try:
            run = make_directory(self._order)
            process = make_process(self._order, run, self._address)
        except (BatonError, OSError) as error:
            return f"{self._order.name} did not start: {error}"
        self._status_file = process.status_file
        log = LossyLog(
            InheritedFile(1, f"of {self._order.name}"), self._stages.say
        )  # Ray collects and bounds this output
        with HeldFile(run / OWNER_FILE, f"{os.getpid()}\n"):
            environment = node_environment(os.environ, self._order, run)
            supervisor = Supervisor(run, environment, log, self._stages, self._signals, self._order.silent_seconds)
            self._supervisor = supervisor
            try:
                supervisor.start([process])
                self._failure = ""
                supervisor.watch()
            except StopAsked:
                pass
            except StartFailed as failure:
                return str(failure)
            finally:
                supervisor.stop([])
        return ""
