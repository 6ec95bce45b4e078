"""Counts what became of one side's handoffs since its start. Reasons are words of ours, whatever a peer sends."""

from collections import Counter
from collections.abc import Mapping

from contracts.messages.gateway import DRAINING, NO_ADAPTER, NO_ROOM, SILENT, UNREACHED
from infra.redis.records import HandoffCounts
from kvtransfer.events import HandoffTimes
from kvtransfer.protocol.sender import UNANSWERED

OF_EITHER = {"cancelled", "superseded", "deadline", DRAINING, "closed", "engine", "capacity", "malformed", "done"}
OF_PREFILL = {NO_ROOM, "bad_grant", "bad_address", "no_transport", "peer_silent", "peer_restarted"}
NOT_THROUGH = {UNANSWERED, UNREACHED, "connection_lost"}
REFUSED_BY_DECODE = {"version", "misfit", "bad_open", "ended", "duplicate", "stale", NO_ADAPTER}
MISSING_TO_DECODE = {"commit_before_grant", "layer_before_grant", "gap", "incomplete", SILENT, "unjoined"}
WRONG_TO_DECODE = {"bad_commit", "bad_frame", "bad_digest", "cut_off"}
REASONS = OF_EITHER | OF_PREFILL | NOT_THROUGH | REFUSED_BY_DECODE | MISSING_TO_DECODE | WRONG_TO_DECODE
OTHER = "other"


class Outcomes:
    """Sums up seconds of the handoffs that passed, and counts the reasons of those that did not."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(("grant", "send", "exposed", "land"), 0.0)
        self._given_up: Counter[str] = Counter()

    def accepted(self, times: HandoffTimes) -> None:
        """Adds the times of a handoff that the peer has accepted."""
        for stage, ms in (("grant", times.grant_ms), ("send", times.send_ms), ("exposed", times.exposed_ms)):
            self._seconds[stage] += ms / 1000

    def landed(self, land_ms: float) -> None:
        """Adds the time that a handoff took from its Commit until all of it was here."""
        self._seconds["land"] += land_ms / 1000

    def given_up(self, reason: str) -> None:
        """Counts a handoff that has ended without passing. `reason` may be the peer's word."""
        self._given_up[reason if reason in REASONS else OTHER] += 1

    def counts(self, dropped: Mapping[str, int]) -> HandoffCounts:
        """Returns all of it, with `dropped`: messages and payloads that were dropped, by reasons of our own."""
        seconds = {f"{stage}_seconds": value for stage, value in self._seconds.items()}
        return HandoffCounts(given_up=dict(self._given_up), dropped=dict(dropped), **seconds)
