"""What a launcher tells a process that it starts, by its environment: the service's name, and its earlier lives."""

import os

from msgspec import Struct

NAME_VARIABLE = "BATON_SERVICE"
RESTARTS_VARIABLE = "BATON_RESTARTS"
MAX_NAME_CHARS = 63


class SupervisedLife(Struct, frozen=True):
    """A process among the services of its launcher."""

    name: str = ""  # such as decode-0; empty: no launcher has started it
    restarts: int = 0  # earlier lives of this service

    def environment(self) -> dict[str, str]:
        return {NAME_VARIABLE: self.name, RESTARTS_VARIABLE: str(self.restarts)}


def own_life() -> SupervisedLife:
    """Returns what this process was told. A malformed number counts as no restart."""
    restarts = os.environ.get(RESTARTS_VARIABLE, "")
    name = os.environ.get(NAME_VARIABLE, "")[:MAX_NAME_CHARS]
    return SupervisedLife(name, int(restarts) if restarts.isdecimal() else 0)
