"""Says how the parts of a deployment on Ray are: what its actors answer, and what the controller makes of it."""

from typing import Literal

from msgspec import Struct

from launcher.deployment import Role

Phase = Literal["starting", "running", "stopping", "stopped", "failed"]


class Look(Struct, frozen=True, kw_only=True):
    """Says how one actor's process is."""

    node: str  # its id
    address: str  # of the node
    stage: str
    percent: int | None
    failure: str  # a sentence, where the process did not start; then it is tried again only if it was there before
    endpoint: str  # where others reach the process
    sentences: tuple[str, ...]  # said since those that were heard
    said: int  # sentences in all


class ServiceState(Struct, frozen=True, kw_only=True):
    """Says how one service is, as `./baton status` shows it."""

    name: str
    role: Role
    stage: str
    percent: int | None = None
    address: str = ""  # of its node
    endpoint: str = ""


class Overview(Struct, frozen=True, kw_only=True):
    """Says how a deployment is."""

    phase: Phase
    error: str  # why it failed
    services: tuple[ServiceState, ...]
    sentences: tuple[str, ...]
    said: int
