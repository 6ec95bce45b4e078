"""Writes the HTML of the details: misses, tenants, lives of workers, and one request with its attempts."""

from collections.abc import Mapping, Sequence
from html import escape

from dashboard.drawing import markup, requests_markup
from dashboard.drawing.markup import NO_VALUE, key, short, table
from dashboard.drawing.palette import OUTCOME_COLOURS, STAGE_COLOURS
from dashboard.reading.badput import Badput
from dashboard.reading.figures import judge
from dashboard.reading.source import WorkerView
from dashboard.units import as_count, as_ms, as_share
from infra.redis.records import FinishedRecord, TenantUse

RESTARTS_HINT = "How often its launcher has started it again. A container's restarts are counted by its platform."


def misses(found: Sequence[Badput], ended: int) -> str:
    """Returns a table of what was not good; `ended`: requests that ended in the window."""
    heads = ("<th>Outcome</th><th>Why</th>", '<th class="n">Requests</th><th class="n">Of all</th>')
    rows = (
        f"<tr><td>{key(OUTCOME_COLOURS[one.outcome], one.outcome.value)}</td><td>{escape(one.why)}</td>"
        f'<td class="n">{one.requests}</td><td class="n">{_part(one.requests, ended)}</td></tr>'
        for one in found
    )
    return table(heads, rows)


def tenants(found: Mapping[str, TenantUse]) -> str:
    heads = (
        '<th>Tenant</th><th class="n">Requests</th><th class="n">Good</th>',
        '<th class="n">Prompt tokens</th><th class="n">Output tokens</th>',
    )
    rows = (
        f'<tr><td>{escape(name)}</td><td class="n">{use.requests}</td>'
        f'<td class="n">{escape(as_share(use.good / use.requests))}</td>'
        f'<td class="n">{as_count(use.prompt_tokens)}</td><td class="n">{as_count(use.output_tokens)}</td></tr>'
        for name, use in found.items()
    )
    return table(heads, rows)


def lives(views: Sequence[WorkerView], now: float) -> str:
    """Returns a row for each worker: where it runs, since when, how often it was restarted, and its adapters."""
    heads = (
        "<th>Worker</th><th>Service</th><th>Host</th><th>Device</th>",
        f'<th class="n">Up for</th><th class="n" title="{RESTARTS_HINT}">Restarts</th><th>Adapters</th>',
    )
    return table(heads, (_life(view, now) for view in views))


def request(record: FinishedRecord, now: float) -> str:
    """Returns all about one request: its path, its figures, and a row for each attempt."""
    verdict = judge(record)
    reason = f": {record.reason}" if record.reason else ""
    tenant = f", tenant {record.tenant}" if record.tenant else ""
    said = f"{verdict.value}{reason}, {now - record.ended_at:.0f} s ago{tenant}"
    heads = (
        '<th class="n">Attempt</th><th class="n">Samples</th><th class="n">Began</th><th class="n">Ended</th>',
        "<th>Prefill worker</th><th>Decode worker</th><th>End</th>",
    )
    rows = (
        f'<tr><td class="n">{each.number}</td><td class="n">{each.samples}</td>'
        f'<td class="n">{as_ms(each.begun_ms)}</td><td class="n">{as_ms(each.ended_ms)}</td>'
        f"<td>{short(each.prefill_worker) or NO_VALUE}</td><td>{short(each.decode_worker) or NO_VALUE}</td>"
        f"<td>{escape(each.end)}</td></tr>"
        for each in record.tries
    )
    return markup.title(record.request, said) + requests_markup.way(record) + table(heads, rows)


def _life(view: WorkerView, now: float) -> str:
    record = view.record
    worker = f"{key(STAGE_COLOURS[view.role], view.role)}<code>{short(view.epoch)}</code>"
    if record is None:
        return f'<tr class="b-silent"><td colspan="7">{worker}</td></tr>'
    adapters = ", ".join(sorted(held.name for held in record.adapters)) or NO_VALUE
    age = max(0.0, now - record.started_at)
    return (
        f'<tr class="b-{view.state}"><td>{worker}</td>'
        f"<td>{escape(record.service) or NO_VALUE}</td><td>{escape(record.place.host) or NO_VALUE}</td>"
        f'<td>{escape(record.device)}</td><td class="n">{_duration(age)}</td><td class="n">{record.restarts}</td>'
        f"<td>{escape(adapters)}</td></tr>"
    )


def _part(part: int, whole: int) -> str:
    return escape(as_share(min(1.0, part / max(1, whole))))


def _duration(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"
