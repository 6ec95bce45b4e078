"""Runs one service as an actor of Ray's: a supervisor in a thread, with the service's own process as its only child.

The kernel kills the process when the thread ends, however that happens (`host/child.py`), so a killed actor leaves
nothing behind. A process that dies is started again by the supervisor, an actor that dies by Ray, here or elsewhere.
"""

import os
import threading
from pathlib import Path

import ray

from contracts.errors import BatonError
from infra.process.status import read_status
from launcher.host.held_file import HeldFile
from launcher.host.log_file import Inherited, LossyLog
from launcher.host.process import READY
from launcher.host.signals import Signals
from launcher.host.supervisor import FIRST_DELAY, LONGEST_DELAY, StartFailed, StopAsked, Supervisor
from launcher.on_ray.look import Look
from launcher.on_ray.node.process import OWNER, announced, make_directory, make_process, node_environment
from launcher.on_ray.node.reborn import is_reborn
from launcher.on_ray.order import Order
from launcher.on_ray.told import Told


class ServiceActor:
    """Owns one process of the deployment on the node that Ray has put it on."""

    def __init__(self, order: Order) -> None:
        """Begins to run the process at once; one that is here again after a death goes on trying to start it."""
        self._order = order
        self._node = ray.get_runtime_context().get_node_id()
        self._again = is_reborn()
        self._address = ray.util.get_node_ip_address()
        self._told = Told()
        self._failure = ""
        self._supervisor: Supervisor | None = None
        self._status_file: Path | None = None
        self._signals = Signals()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._live, name=order.name)
        self._thread.start()

    def __repr__(self) -> str:
        """Returns the name that Ray puts before each line of the actor's log."""
        return self._order.name

    def look(self, heard: int) -> Look:
        """Says how the process is; `heard` of the sentences are known."""
        told, status = self._told, read_status(self._status_file) if self._status_file is not None else None
        stage, percent = told.stage, told.percent
        if stage == READY and self._supervisor is not None and not self._supervisor.ready:
            stage = status.stage if status is not None and status.stage != READY else "starting again"
        return Look(
            node=self._node,
            address=self._address,
            stage=stage,
            percent=percent if stage != READY else None,
            failure=self._failure,
            endpoint=announced(self._order, status, self._address),
            sentences=told.said.since(heard),
            said=told.said.count,
        )

    def stop(self) -> None:
        """Ends the process, which drains first, and returns when it is gone."""
        self._stopped.set()
        self._signals.ask_to_stop()
        self._thread.join()

    def _live(self) -> None:
        """Is the thread that the process lives and dies with."""
        delay = FIRST_DELAY
        while not self._stopped.is_set():
            self._failure = self._supervise()
            if not self._again or self._stopped.is_set():
                return
            self._told.say(f"{self._failure}; it is tried again in {delay:.0f} s")
            self._stopped.wait(delay)
            delay = min(2 * delay, LONGEST_DELAY)

    def _supervise(self) -> str:
        """Runs the process until it is told to stop; returns why it did not start, if so."""
        try:
            run = make_directory(self._order)
            process = make_process(self._order, run, self._address)
        except (BatonError, OSError) as error:
            return f"{self._order.name} did not start: {error}"
        self._status_file = process.status_file
        log = LossyLog(Inherited(1, f"of {self._order.name}"), self._told.say)  # Ray collects it, and bounds it
        with HeldFile(run / OWNER, f"{os.getpid()}\n"):
            environment = node_environment(os.environ, self._order, run)
            supervisor = Supervisor(run, environment, log, self._told, self._signals, self._order.silent_seconds)
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
