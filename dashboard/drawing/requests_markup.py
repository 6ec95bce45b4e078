"""Writes the table of requests, and the path of a request, as HTML. All text from records is escaped."""

from collections.abc import Iterable
from html import escape

from dashboard.drawing.markup import NO_VALUE, TPOT_HINT, TTFT_HINT, bar, codec_note, key, short, table
from dashboard.drawing.palette import OUTCOME_COLOURS, STAGE_COLOURS
from dashboard.reading.figures import Outcome, handed_off, handoff_rate, stages
from dashboard.units import as_bytes, as_ms, as_rate
from infra.redis.records import FinishedRecord

CACHED_HINT = "Prompt tokens whose KV was found in the cache."
HANDOFF_HINT = (
    "How the KV cache went from the prefill to the decode worker. The rate is that of the time in which KV was ready "
    "to leave or on its way. Exposed is what the handoff adds: from the end of the prompt's computation until all KV "
    "had landed, but for one crossing of the network."
)
STAGE_HELP = (
    "Waiting (at the gate, in a worker's line, on the way) and prefill are up to the first token, handoff and decode "
    "behind it. A handoff runs beside its prefill: only what it adds is drawn."
)


def requests(records: Iterable[tuple[FinishedRecord, Outcome]], now: float) -> str:
    """Returns a table with a row for each of the last requests, the latest first."""
    legend = "".join(key(colour, name) for name, colour in STAGE_COLOURS.items())
    heads = (
        '<th>Ended</th><th>Outcome</th><th class="n" title="of the prompt and of all answers to it">Tokens</th>',
        f'<th class="n" title="{CACHED_HINT}">Cached</th>',
        f'<th class="n" title="{TTFT_HINT}">TTFT</th><th class="n" title="{TPOT_HINT}">TPOT</th>',
        '<th class="n">Total</th>',
        f'<th class="b-wide" title="{STAGE_HELP}">Stages {legend}</th><th class="n">KV moved</th>',
    )
    return table(heads, (_request_row(record, verdict, now) for record, verdict in records))


def way(record: FinishedRecord) -> str:
    """Draws the path of one request: gateway, prefill worker, moved KV, decode worker."""
    decoded = handed_off(record)
    waited, *_ = stages(record)
    stops = [_stop("gateway", "waited", waited.ms, STAGE_COLOURS["waiting"])]
    if record.prefill_worker:
        cached = f", {record.cached_tokens} cached" if record.cached_tokens else ""
        read = f"{short(record.prefill_worker)}: {record.prompt_tokens} tokens{cached}"
        stops.append(_stop("prefill", read, record.prefill_ms, STAGE_COLOURS["prefill"]))
        if decoded:
            moved = as_bytes(record.handoff_bytes) if record.handoff_bytes else "nothing"
            stops.append(_stop(moved, "moved", record.handoff_ms, STAGE_COLOURS["handoff"]))
    if record.decode_worker and (decoded or not record.prefill_worker):
        written = f"{short(record.decode_worker)}: {record.output_tokens} tokens"
        if record.cached_tokens and not record.prefill_worker:
            written += f", {record.cached_tokens} of the prompt cached"
        stops.append(_stop("decode", written, max(0.0, record.e2e_ms - record.ttft_ms), STAGE_COLOURS["decode"]))
    tpot = as_ms(record.tpot_ms) if record.output_tokens > 1 else NO_VALUE
    figures = (
        f'<div class="b-figures"><span title="{TTFT_HINT}">TTFT <b>{as_ms(record.ttft_ms)}</b></span>'
        f'<span title="{TPOT_HINT}">TPOT <b>{tpot}</b></span>'
        f"<span>total <b>{as_ms(record.e2e_ms)}</b></span></div>"
    )
    handoff = f'<div class="b-handoff" title="{HANDOFF_HINT}">{_handoff(record)}</div>' if decoded else ""
    return f'<div class="b-way">{"<i>→</i>".join(stops)}</div>{figures}{handoff}'


def _request_row(record: FinishedRecord, verdict: Outcome, now: float) -> str:
    parts = stages(record)
    outcome = key(OUTCOME_COLOURS[verdict], verdict.value)
    hint = " · ".join(f"{stage.name} {as_ms(stage.ms)}" for stage in parts)
    ends = verdict in (Outcome.FAILED, Outcome.REFUSED)
    reason = f": {escape(record.reason)}" if ends and record.reason else ""
    samples = f" · {record.samples} samples" if record.samples > 1 else ""
    retried = f" · {record.attempts} attempts" if record.attempts > 1 else ""
    tpot = as_ms(record.tpot_ms) if record.output_tokens > 1 else NO_VALUE
    ttft = as_ms(record.ttft_ms) if record.output_tokens else NO_VALUE
    handoff = f' title="{_handoff(record)}"' if handed_off(record) else ""
    return (
        f'<tr><td class="b-soft">{max(0.0, now - record.ended_at):.0f} s ago</td>'
        f"<td>{outcome}<span class='b-soft'>{reason}{samples}{retried}</span></td>"
        f'<td class="n">{record.prompt_tokens} → {record.output_tokens}</td>'
        f'<td class="n">{record.cached_tokens or NO_VALUE}</td>'
        f'<td class="n" title="{_limit(record.objective.ttft_ms)}">{ttft}</td>'
        f'<td class="n" title="{_limit(record.objective.tpot_ms)}">{tpot}</td><td class="n">{as_ms(record.e2e_ms)}</td>'
        f'<td class="b-stages" title="{hint}">{bar([(STAGE_COLOURS[s.name], s.share) for s in parts])}</td>'
        f'<td class="n"{handoff}>{as_bytes(record.handoff_bytes) if record.handoff_bytes else NO_VALUE}</td></tr>'
    )


def _limit(limit_ms: float | None) -> str:
    return "no limit" if limit_ms is None else f"limit {as_ms(limit_ms)}"


def _handoff(record: FinishedRecord) -> str:
    said = "nothing moved: the decode worker had all of the KV"
    if record.handoff_bytes:
        way = f" over {record.transport}" if record.transport else ""
        said = f"{as_bytes(record.handoff_bytes)}{codec_note(record.codec)}{way}{', sealed' if record.sealed else ''}"
    rate = handoff_rate(record)
    speed = [as_rate(rate)] if rate is not None else []
    waits = [f"waited {as_ms(record.grant_ms)} for room", f"{as_ms(record.exposed_ms)} exposed"]
    return " · ".join([said, *speed, *waits])


def _stop(name: str, note: str, ms: float, colour: str) -> str:
    return f'<div style="border-color:{colour}"><b>{name}</b><span>{note}</span><em>{as_ms(ms)}</em></div>'
