"""Asks a deployment's controller how the deployment is, and shows it."""

import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError

from launcher.host.signals import Signals
from launcher.on_ray.cluster import ClusterError
from launcher.on_ray.control.controller import NAME
from launcher.on_ray.leftovers import remove_leftovers
from launcher.on_ray.look import Overview, Phase
from launcher.stages import Stages

ANSWER_SECONDS = 30.0  # of a controller whose node has just died, Ray makes another one
ASK_SECONDS = 0.5  # between two questions
TABLE = ("SERVICE", "STAGE", "NODE", "ADDRESS")


def controller(namespace: str) -> Any:
    """Returns the handle of the namespace's controller, None if there is none."""
    try:
        return ray.get_actor(NAME, namespace)
    except ValueError:
        return None


class Reports:
    """Reads the controller's reports one after the other, and shows what is new."""

    def __init__(self, handle: Any, stages: Stages, keeps: bool = False) -> None:
        self._handle = handle
        self._stages = stages
        self._keeps = keeps
        self._heard = 0
        self._shown: set[str] = set()

    def ask(self) -> Overview:
        """Returns how the deployment is. Raises `ClusterError` where the controller does not answer."""
        until = time.monotonic() + ANSWER_SECONDS
        while (left := until - time.monotonic()) > 0:
            try:
                overview: Overview = ray.get(self._handle.overview.remote(self._heard, self._keeps), timeout=left)
            except ActorUnavailableError:
                time.sleep(ASK_SECONDS)  # Ray makes it anew
            except RayActorError:
                raise ClusterError(
                    "the deployment's controller is gone: ./baton down removes what it has left"
                ) from None
            except GetTimeoutError:
                break
            else:
                self._heard = overview.said
                return overview
        raise ClusterError(f"the deployment's controller gives no answer in {ANSWER_SECONDS:.0f} s")

    def follow(self, signals: Signals, until: Callable[[Phase], bool], show: bool) -> Overview:
        """Asks until the deployment is in a phase, or a signal asks to stop. Raises `ClusterError`."""
        while True:
            overview = self.ask()
            for sentence in overview.sentences:
                self._stages.say(sentence)
            if show:
                self.show(overview)
            if until(overview.phase) or signals.asked_to_stop:
                return overview
            signals.wait(ASK_SECONDS)

    def show(self, overview: Overview) -> None:
        """Shows a line for each service."""
        for service in overview.services:
            note = f"on {service.address}" if service.address else ""
            self._stages.show(service.name, service.stage, service.percent, note)


def table(overview: Overview) -> str:
    """Writes how the deployment is: a line for each service."""
    rows = [TABLE]
    for service in overview.services:
        stage = service.stage if service.percent is None else f"{service.stage} {service.percent}%"
        rows.append((service.name, stage, service.address or "-", service.endpoint or "-"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join([f"{overview.phase}{f': {overview.error}' if overview.error else ''}", "", *lines])


def taken_down(handle: Any, stages: Stages, signals: Signals) -> None:
    """Has the controller take everything down, shows how far it is, and ends the controller. Raises `ClusterError`."""
    asked, began = signals.asked_to_stop, time.monotonic()
    handle.stop.remote()
    reports = Reports(handle, stages)
    while (overview := reports.ask()).phase not in ("stopped", "failed"):
        left = ", ".join(service.name for service in overview.services)
        stages.show("stopping", left or "the rest", note=f"({time.monotonic() - began:.0f} s)")
        if signals.asked_to_stop > asked + 1:
            remove_leftovers()  # whoever asks twice more does not wait for those that drain
            break
        signals.wait(ASK_SECONDS)
    ray.kill(handle, no_restart=True)
    stages.show("stopping", "done")
    stages.settle()
