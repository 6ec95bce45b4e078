"""Outcomes of one side's handoffs since its start, by reasons from a fixed set, whatever a peer sends."""

from collections import Counter
from collections.abc import Mapping

from contracts.messages.gateway import (
    REASON_DRAINING,
    REASON_NO_ADAPTER,
    REASON_NO_ROOM,
    REASON_SENDER_SILENT,
    REASON_UNREACHED,
)
from infra.redis.worker_load import HandoffCounts
from kvtransfer.events import HandoffTimes
from kvtransfer.protocol.prefill_handoff import REASON_UNANSWERED

OF_EITHER = {
    "cancelled",
    "superseded",
    "deadline",
    REASON_DRAINING,
    "closed",
    "engine",
    "capacity",
    "malformed",
    "done",
}
OF_PREFILL = {REASON_NO_ROOM, "bad_grant", "bad_address", "no_transport", "peer_silent", "peer_restarted"}
NOT_THROUGH = {REASON_UNANSWERED, REASON_UNREACHED, "connection_lost"}
REFUSED_BY_DECODE = {"version", "misfit", "bad_open", "ended", "duplicate", "stale", REASON_NO_ADAPTER}
MISSING_TO_DECODE = {"commit_before_grant", "layer_before_grant", "gap", "incomplete", REASON_SENDER_SILENT, "unjoined"}
WRONG_TO_DECODE = {"bad_commit", "bad_frame", "bad_digest", "cut_off"}
KNOWN_REASONS = OF_EITHER | OF_PREFILL | NOT_THROUGH | REFUSED_BY_DECODE | MISSING_TO_DECODE | WRONG_TO_DECODE
OTHER_REASON = "other"


class Outcomes:
    """Sums the seconds of successful handoffs, and counts the reasons of the others."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(("grant", "send", "exposed", "land"), 0.0)
        self._given_up: Counter[str] = Counter()

    def accepted(self, times: HandoffTimes) -> None:
        for stage, ms in (("grant", times.grant_ms), ("send", times.send_ms), ("exposed", times.exposed_ms)):
            self._seconds[stage] += ms / 1000

    def landed(self, land_ms: float) -> None:
        """Adds the time from a handoff's Commit until all its KV had landed."""
        self._seconds["land"] += land_ms / 1000

    def given_up(self, reason: str) -> None:
        """Counts an unsuccessful handoff. `reason` may come from the peer."""
        self._given_up[reason if reason in KNOWN_REASONS else OTHER_REASON] += 1

    def counts(self, dropped: Mapping[str, int]) -> HandoffCounts:
        seconds = {f"{stage}_seconds": value for stage, value in self._seconds.items()}
        return HandoffCounts(given_up=dict(self._given_up), dropped=dict(dropped), **seconds)
