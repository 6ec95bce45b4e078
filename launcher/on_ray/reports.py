"""Asks a deployment's controller for its overview, and shows it."""

import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError

from launcher.columns import in_columns
from launcher.host.signals import Signals
from launcher.on_ray.cluster import ClusterError
from launcher.on_ray.control.controller import CONTROLLER_NAME
from launcher.on_ray.leftovers import remove_leftovers
from launcher.on_ray.overview import Overview, Phase
from launcher.stages import StageDisplay

ANSWER_TIMEOUT_S = 30.0  # Ray restarts a controller whose node has just died
POLL_PERIOD_S = 0.5
TABLE_HEADER = ("SERVICE", "STAGE", "NODE", "ADDRESS")


def controller(namespace: str) -> Any:
    """Returns the handle of the namespace's controller, or None."""
    try:
        return ray.get_actor(CONTROLLER_NAME, namespace)
    except ValueError:
        return None


class Reports:
    """Reads the controller's overviews one after the other, and shows new sentences."""

    def __init__(self, handle: Any, stages: StageDisplay, keeps: bool = False) -> None:
        self._handle = handle
        self._stages = stages
        self._keeps = keeps
        self._heard = 0
        self._shown: set[str] = set()

    def ask(self) -> Overview:
        """Returns the controller's overview. Raises `ClusterError` if the controller does not answer."""
        until = time.monotonic() + ANSWER_TIMEOUT_S
        while (left := until - time.monotonic()) > 0:
            try:
                overview: Overview = ray.get(self._handle.overview.remote(self._heard, self._keeps), timeout=left)
            except ActorUnavailableError:
                time.sleep(POLL_PERIOD_S)  # Ray restarts it
            except RayActorError:
                raise ClusterError(
                    "the deployment's controller is gone: ./baton down removes what it has left"
                ) from None
            except GetTimeoutError:
                break
            else:
                self._heard = overview.said
                return overview
        raise ClusterError(f"the deployment's controller gives no answer in {ANSWER_TIMEOUT_S:.0f} s")

    def follow(self, signals: Signals, until: Callable[[Phase], bool], show: bool) -> Overview:
        """Asks until `until(phase)` holds or a signal arrives. Raises `ClusterError`."""
        while True:
            overview = self.ask()
            for sentence in overview.sentences:
                self._stages.say(sentence)
            if show:
                self.show(overview)
            if until(overview.phase) or signals.asked_to_stop:
                return overview
            signals.wait(POLL_PERIOD_S)

    def show(self, overview: Overview) -> None:
        for service in overview.services:
            note = f"on {service.address}" if service.address else ""
            self._stages.show(service.name, service.stage, service.percent, note)


def table(overview: Overview) -> str:
    """Formats an overview as a table with a line for each process."""
    rows = [TABLE_HEADER]
    for service in overview.services:
        stage = service.stage if service.percent is None else f"{service.stage} {service.percent}%"
        rows.append((service.name, stage, service.address or "-", service.endpoint or "-"))
    return "\n".join([f"{overview.phase}{f': {overview.error}' if overview.error else ''}", "", *in_columns(rows)])


def taken_down(handle: Any, stages: StageDisplay, signals: Signals) -> None:
    """Has the controller stop the deployment, shows progress, and ends the controller. Raises `ClusterError`."""
    signals_before, began = signals.asked_to_stop, time.monotonic()
    handle.stop.remote()
    reports = Reports(handle, stages)
    while (overview := reports.ask()).phase not in ("stopped", "failed"):
        left = ", ".join(service.name for service in overview.services)
        stages.show("stopping", left or "the rest", note=f"({time.monotonic() - began:.0f} s)")
        if signals.asked_to_stop > signals_before + 1:
            remove_leftovers()  # two further signals: do not wait for draining services
            break
        signals.wait(POLL_PERIOD_S)
    ray.kill(handle, no_restart=True)
    stages.show("stopping", "done")
    stages.settle()
