"""Makes the events and jobs that a decode worker's policy receives."""

from typing import Any

from contracts.kv.spec import WireForm
from contracts.messages.gateway import Stages
from contracts.messages.handoff import Branch, Commit, Open
from contracts.messages.job import DecodeJob
from contracts.messages.sampling import Limits
from kvtransfer.events import BlocksWanted, Landed
from kvtransfer.handoff import HandoffKey
from tests.opens import open_of
from tests.worker.role_bench import LIMITS, SAMPLING, Bench, prompted
from worker.roles.decode import DecodePolicy

Branches = dict[int, list[int]] | list[Branch] | None
"""Tokens by sample, or whole branches."""

KEY = HandoffKey("prefill", 5)


def opened(tokens: int = 10, request: str = "r1", **changes: Any) -> Open:
    """Makes the Open of handoff 5, whose text begins like all others'."""
    fields: dict[str, Any] = {
        "sender": "prefill",
        "receiver": "me",
        "handoff": 5,
        "request": request,
        "samples": (0,),
        "attempt": 1,
        "gateway": "gateway",
        "remaining_ms": 5000.0,
        "due_ms": 300.0,
        "fingerprint": "print",
        "form": WireForm("bytes", 4),
    }
    return open_of(**(fields | prompted(tokens, changes)))


def committed(limits: Limits = LIMITS, branches: Branches = None, **changes: Any) -> Commit:
    """Makes the Commit of handoff 5."""
    if not isinstance(branches, list):
        branches = [Branch(*each) for each in (branches or {0: [3]}).items()]
    fields: dict[str, Any] = {
        "sender": "prefill",
        "receiver": "me",
        "handoff": 5,
        "offset": 0,
        "payloads": 2,
        "size": 384,
        "digest": 1,
        "index": 0,
        "branches": branches,
        "sampling": SAMPLING,
        "limits": limits,
        "stages": Stages(1.0, 2.0, cached_tokens=4),
    }
    return Commit(**(fields | changes))


def wanted(*samples: int, **changes: Any) -> BlocksWanted:
    """Asks for room for these samples of handoff 5, all of them alive."""
    message = opened(samples=samples, **changes)
    return BlocksWanted(HandoffKey(message.sender, message.handoff), message, samples)


def landed(limits: Limits = LIMITS, branches: Branches = None, **changes: Any) -> Landed:
    """Says that handoff 5 has landed."""
    commit = committed(limits, branches, **changes)
    samples = tuple(branch.sample for branch in commit.branches)
    key = HandoffKey(commit.sender, commit.handoff)
    return Landed(key=key, open=opened(samples=samples), commit=commit, bytes=384, digest=1)


def short_job(tokens: int = 20, **changes: Any) -> DecodeJob:
    """Makes a job that the decode worker computes from its prompt on."""
    fields: dict[str, Any] = {
        "request": "r1",
        "attempt": 1,
        "sender": "gateway",
        "receiver": "me",
        "sampling": SAMPLING,
        "limits": LIMITS,
        "deadline": 100.0,
        "queued_at": 0.5,
    }
    return DecodeJob(**(fields | prompted(tokens, changes)))


def decode_worker(**settings: Any) -> tuple[Bench, DecodePolicy]:
    """Makes a decode worker's policy on a bench of these settings."""
    bench = Bench(**settings)
    return bench, DecodePolicy(bench.parts.of_policy())
