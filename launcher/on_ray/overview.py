"""Defines the state of a deployment on Ray: reports of its actors, and the controller's overview."""

from typing import Literal

from msgspec import Struct

from launcher.deployment import Role

Phase = Literal["starting", "running", "stopping", "stopped", "failed"]


class ActorReport(Struct, frozen=True, kw_only=True):
    """State of one actor's process."""

    node: str  # Ray's id of the node
    address: str  # of the node
    stage: str
    percent: int | None
    failure: str  # why the process did not start; empty: it did. A process that ran before is tried again
    endpoint: str  # address at which other processes reach it
    sentences: tuple[str, ...]  # new since the caller's last call
    said: int  # number of all sentences


class MemberState(Struct, frozen=True, kw_only=True):
    """State of one process, as `./baton status` shows it."""

    name: str
    role: Role
    stage: str
    percent: int | None = None
    address: str = ""  # of its node
    endpoint: str = ""


class Overview(Struct, frozen=True, kw_only=True):
    """State of a deployment."""

    phase: Phase
    error: str  # why it failed
    services: tuple[MemberState, ...]
    sentences: tuple[str, ...]
    said: int
