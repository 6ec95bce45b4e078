"""Says why no request can be served now, and what would help. Pure."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from dashboard.reading.source import Snapshot, WorkerView

RECENT_S = 30.0  # s in which all requests have to be refused or fail
MIN_REQUESTS = 3  # that have ended meanwhile
HELP_BY_REASON = {
    "objective_out_of_reach": "Their objective is stricter than these workers can keep: relax `--slo`, the key's `slo` "
    "or the client's `x-slo-…` headers, or add workers.",
    "no_workers": "No worker is ready for them: the log says why workers end or do not start.",
    "queue_full": "Too many requests wait: more workers, or a larger `--max-waiting`.",
    "queue_unavailable": "Jobs cannot be written to Redis: see its log and its memory.",
}


class Trouble(NamedTuple):
    """A reason why nothing can be served, as two sentences."""

    what: str
    help: str


def unloaded(snapshot: Snapshot) -> str:
    """Returns a sentence while the model is unloaded because it was idle, which is no trouble; else an empty text."""
    stages = {gateway.unloaded for gateway in snapshot.gateways} - {""}
    if not stages:
        return ""
    return f"The model was idle and is {min(stages)} (`--idle-unload`): the next request loads it, and waits for it."


def trouble(snapshot: Snapshot) -> Trouble | None:
    """Returns None while requests can be served, while the model is unloaded, and while no worker has registered."""
    workers, gateways = snapshot.workers, snapshot.gateways
    if not workers or unloaded(snapshot):
        return None
    if not gateways:
        return Trouble(
            "No gateway runs.", "`./baton up` starts a dead one again; `./baton run gateway` starts another."
        )
    ready = [view for view in workers if view.state == "ready"]
    if not ready:
        return _without_ready(workers)
    if not any(view.role == "decode" for view in ready) and any(view.role == "decode" for view in workers):
        return Trouble("No decode worker is ready.", f"{_silence(workers)} Prefill workers answer alone meanwhile.")
    standings = [role for gateway in gateways for role in (gateway.standing.prefill, gateway.standing.decode)]
    judged = [worker for role in standings for worker in role.workers]
    if judged and not any(one.usable for one in judged):
        return Trouble(
            "No gateway can reach a worker.",
            "Workers are registered, but do not answer: a firewall, or an address that only they know (`--announce`).",
        )
    return _only_refusals(snapshot)


def _without_ready(views: Sequence[WorkerView]) -> Trouble:
    if all(view.state == "draining" for view in views):
        return Trouble("No request can be served: all workers are shut down.", "New workers take over once ready.")
    return Trouble("No request can be served: no worker is ready.", _silence(views))


def _silence(views: Sequence[WorkerView]) -> str:
    silent = [view for view in views if view.state == "silent"]
    if not silent:
        return "They are being shut down; new workers take over once ready."
    longest = max(view.beat_age for view in silent)
    known = [view.record for view in silent if view.record is not None]
    where = sorted({f"{record.service or record.epoch[:6]} on {record.place.host}" for record in known})
    named = f" ({', '.join(where[:4])})" if where else ""
    return (
        f"{len(silent)} of {len(views)} workers{named} have been silent for up to {longest:.0f} s. Their "
        "launcher starts dead workers again; `./baton status` shows it, and the log says why they ended."
    )


def _only_refusals(snapshot: Snapshot) -> Trouble | None:
    """Returns a sentence if everything that has ended lately was refused or failed."""
    lately = [one for one in snapshot.finished[-1000:] if one.ended_at > snapshot.now - RECENT_S]
    bad = [one for one in lately if one.outcome in ("refused", "failed")]
    if len(bad) < MIN_REQUESTS or len(bad) < len([one for one in lately if one.outcome != "cancelled"]):
        return None
    ((reason, count),) = Counter(one.reason for one in bad).most_common(1)
    help = HELP_BY_REASON.get(reason, "The gateways' logs name each of these requests with its reason.")
    said = f"All {len(bad)} requests of the last {RECENT_S:.0f} s were refused or failed, {count} of them: {reason}."
    return Trouble(said, help)
