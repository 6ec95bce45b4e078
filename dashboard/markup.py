"""Writes the page's HTML. All text from records and clients is escaped here, and nowhere else."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from dashboard.figures import (
    Glance,
    Outcome,
    RequestCounts,
    Sharing,
    Spread,
    TokenRates,
    handed_off,
    handoff_rate,
    stages,
)
from dashboard.load_runs import LoadRun
from dashboard.palette import NEUTRAL_COLOUR, OUTCOME_COLOURS, PALE_ALPHA, STAGE_COLOURS, STATE_COLOURS
from dashboard.source import WorkerView
from dashboard.units import as_bytes, as_count, as_ms, as_rate, as_share
from infra.redis.records import FinishedRecord, WorkerLoad, WorkerRecord

TTFT_HINT = "Time to first token: from the gateway's receipt of a request to its first output token."
TPOT_HINT = "Time per output token: (end-to-end time - TTFT) / (output tokens - 1), of one request."
GOODPUT_HINT = (
    "Requests per second that meet every limit of their own objective, as the gateway judged them, since the first "
    "request in the window. The percentage is the share of good requests among accepted requests."
)
PROGRESS_HINT = (
    "Requests in progress: running are in prefill or decode, waiting are queued; at the gate: not sent to a worker yet."
)
TOKENS_HINT = "Output tokens per second of all workers over the last 10 seconds."
MOVED_HINT = "KV cache bytes per second that went from prefill to decode workers over the last 10 seconds."
HITS_HINT = "Prompt tokens of the requests in the window whose KV was in a cache, so it was not computed again."
FOUND_HINT = (
    "Share of the sequences' tokens whose KV was on this worker already: "
    "a prefill worker need not compute them, a decode worker need not receive them. Since the worker's start."
)
WASTED_HINT = "Share of the token slots in used blocks that are still empty. Now."
PREEMPTED_HINT = (
    "Sequences that were preempted and resumed: with blocks from the host tier / computed again. "
    "Since the worker's start."
)
USE_HINT = "KV blocks: used by sequences, and idle blocks with cached prefixes, which are evicted on demand."
GUESSED_HINT = "Acceptance rate of draft tokens, and tokens per sequence and step. Since the worker's start."
READ_HINT = "Prompt tokens that were computed or received, and output tokens. Since the worker's start."
CACHED_HINT = "Prompt tokens whose KV was found in the cache."
HANDOFF_HINT = (
    "How the KV cache went from the prefill to the decode worker. The rate is that of the time in which KV was ready "
    "to leave or on its way. Exposed is what the handoff adds: from the end of the prompt's computation until all KV "
    "had landed, but for one crossing of the network."
)
MAX_NAMED_RUNS = 3
NO_VALUE = "\u2013"
STAGE_HELP = (
    "Waiting (at the gate, in a worker's line, on the way) and prefill are up to the first token, handoff and decode "
    "behind it. A handoff runs beside its prefill: only what it adds is drawn."
)


def tiles(glance: Glance, progress: RequestCounts, rates: TokenRates) -> str:
    """Returns the first line of the page."""
    share = glance.good_share()
    refused = glance.counts[Outcome.REFUSED]
    good = f"{_share(share)} of {glance.judged()} good" if share is not None else "no request yet"
    good += f", {refused} refused" if refused else ""
    goodput = f"{glance.goodput:.2f}" if share is not None else NO_VALUE
    running = progress.prefill + progress.decode
    waiting = f"{progress.waiting} waiting" + (f", {progress.at_gate} at the gate" if progress.at_gate else "")
    prompts = f"{as_count(rates.prompt_tokens)} prompt tokens/s"
    value, unit = as_bytes(rates.handoff_bytes).split(" ")
    shown = (
        _tile("goodput", "Goodput", goodput, "req/s", good + _share_bar(glance), GOODPUT_HINT),
        _spread_tile("ttft", "TTFT", glance.ttft, TTFT_HINT),
        _spread_tile("tpot", "TPOT", glance.tpot, TPOT_HINT),
        _tile("running", "Running", str(running), "requests", waiting, PROGRESS_HINT),
        _tile("tokens", "Output", as_count(rates.output_tokens), "tokens/s", prompts, TOKENS_HINT),
        _tile("moved", "KV moved", value, f"{unit}/s", "prefill → decode", MOVED_HINT),
        _hits_tile(glance),
    )
    return f'<div class="b-tiles">{"".join(shown)}</div>'


def workers(views: Sequence[WorkerView], lately: Mapping[str, Sharing | None]) -> str:
    """Returns a table with a row for each worker. `lately`: epoch → sharing of the last minute."""
    kv_legend = key(NEUTRAL_COLOUR, "used") + key(NEUTRAL_COLOUR + PALE_ALPHA, "cached")
    heads = (
        "<th>Worker</th><th>State</th>",
        '<th class="n">Running</th><th class="n">Waiting</th>',
        f'<th class="b-wide" title="{USE_HINT}">KV {kv_legend}</th>',
        f'<th class="n" title="{WASTED_HINT}">Wasted</th><th class="n" title="{FOUND_HINT}">Prefix hits</th>',
        f'<th class="n" title="{PREEMPTED_HINT}">Swapped / redone</th>',
        f'<th class="n" title="{GUESSED_HINT}">Drafts</th><th class="n" title="{READ_HINT}">Tokens</th>',
    )
    return table(heads, (_worker_row(view, lately.get(view.epoch)) for view in views))


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


def answer(text: str, *, running: bool) -> str:
    """Returns the text of an answer, with a caret while it grows."""
    caret = '<span class="b-caret"></span>' if running else ""
    return f'<div class="b-answer"><div>{escape(text)}{caret}</div></div>'


def header(models: Sequence[str], prefill: int, decode: int) -> str:
    """Returns the title, the served models and the number of workers."""
    served = " ".join(f"<span>{escape(model)}</span>" for model in models) or "<span>no gateway</span>"
    return (
        f'<div class="b-header"><b>Baton</b>{served}'
        f'<span title="prefill and decode workers that are there">{prefill}P{decode}D</span></div>'
    )


def name() -> str:
    return '<div class="b-header"><b>Baton</b></div>'


def legend(refused: Mapping[str, int], runs: Sequence[LoadRun] = ()) -> str:
    """Returns the legend of the goodput bars, with the number of refused requests by error code, and the last runs."""
    words = {
        Outcome.GOOD: "good",
        Outcome.LATE: "late: finished, but missed a limit",
        Outcome.FAILED: "failed",
        Outcome.REFUSED: "refused: 429 or 503",
    }
    keys = "".join(key(OUTCOME_COLOURS[v], word) for v, word in words.items())
    most = sorted(refused.items(), key=lambda each: -each[1])
    counts = ", ".join(f"{count} {escape(code)}" for code, count in most)
    since = f"<span>refused since the gateways' start: {counts}</span>" if most else ""
    names = ", ".join(escape(run.name) for run in runs[-MAX_NAMED_RUNS:])
    loads = f"<span>grey: {names}</span>" if runs else ""
    return f'<div class="b-legend">{keys}{loads}{since}</div>'


def roles() -> str:
    """Returns the legend of lines by role."""
    return f'<div class="b-legend">{"".join(key(STAGE_COLOURS[role], role) for role in ("prefill", "decode"))}</div>'


def title(text: str, note: str = "", hint: str = "") -> str:
    return f'<div class="b-title" title="{escape(hint)}"><b>{escape(text)}</b> <span>{escape(note)}</span></div>'


def short(epoch: str) -> str:
    """Returns the first characters of a worker's epoch, by which people tell workers apart."""
    return escape(epoch[:6])


def _tile(name: str, label: str, value: str, unit: str, note: str, hint: str) -> str:
    return (
        f'<div class="b-tile" data-tile="{name}" title="{hint}"><div class="b-label">{label}</div>'
        f'<div class="b-value">{value}<small>{unit}</small></div><div class="b-note">{note}</div></div>'
    )


def _spread_tile(name: str, label: str, spread: Spread | None, hint: str) -> str:
    if spread is None:
        return _tile(name, label, NO_VALUE, "", "no request yet", hint)
    value, unit = as_ms(spread.p50).split(" ")
    return _tile(name, label, value, f"{unit} p50", f"p95 {as_ms(spread.p95)} · p99 {as_ms(spread.p99)}", hint)


def _hits_tile(glance: Glance) -> str:
    share = glance.cached_share()
    if share is None:
        return _tile("hits", "Prefix hits", NO_VALUE, "", "no request yet", HITS_HINT)
    note = f"{as_count(glance.cached_tokens)} of {as_count(glance.prompt_tokens)} cached"
    return _tile("hits", "Prefix hits", _share(share), "of prompt", note, HITS_HINT)


def _share_bar(glance: Glance) -> str:
    parts = [(OUTCOME_COLOURS[v], glance.counts[v]) for v in Outcome if v is not Outcome.CANCELLED]
    whole = sum(count for _, count in parts)
    return _bar([(colour, count / whole) for colour, count in parts] if whole else [])


def _bar(parts: Sequence[tuple[str, float]]) -> str:
    inner = "".join(f'<i style="width:{100 * share:.2f}%;background:{colour}"></i>' for colour, share in parts)
    return f'<span class="b-bar">{inner}</span>'


def _device(record: WorkerRecord) -> str:
    return f"{record.ranks} ranks on {record.device}" if record.ranks > 1 else record.device


def _precision(record: WorkerRecord) -> str:
    weights = "" if record.quantization == "none" else f", {record.quantization} weights"
    kv = "" if record.kv_dtype in ("", record.dtype) else f", {record.kv_dtype} KV"
    return record.dtype + weights + kv


def _links(record: WorkerRecord) -> str:
    goes = "to" if record.role == "prefill" else "from"
    return "".join(
        f"\nKV {goes} {link.peer[:6]}{_codec(link.codec)} over {link.transport}{', sealed' if link.sealed else ''}"
        for link in record.links
    )


def _codec(codec: str) -> str:
    return f" as {codec}" if codec != "none" else ""


def _worker_row(view: WorkerView, lately: Sharing | None) -> str:
    record, load, kv = view.record, view.load, view.load.kv
    state = view.state if view.state != "silent" else f"silent for {view.beat_age:.0f} s"
    hint = (
        f"{record.model} · {_device(record)} · {_precision(record)} · {record.address}{_links(record)}"
        if record
        else ""
    )
    used, cached = (min(1.0, count / (load.blocks_total or 1)) for count in (load.blocks_used, load.blocks_cached))
    colour = STAGE_COLOURS[view.role]
    bar = _bar([(colour, used), (colour + PALE_ALPHA, min(cached, 1.0 - used))])
    shares = f"<b>{_share(used)}</b><em>{'+' + _share(cached) if cached else ''}</em>"
    preempted = f"{kv.preempted_swapped} / {kv.preempted_recomputed}" if load.preemptions else "0"
    return (
        f'<tr class="b-{view.state}"><td title="{escape(hint)}">{key(colour, view.role)}'
        f"<code>{short(view.epoch)}</code></td><td>{key(STATE_COLOURS[view.state], state)}</td>"
        f'<td class="n">{load.running}</td><td class="n">{load.waiting}</td>'
        f'<td class="b-kv" title="{_blocks(load)}{_memory(record) if record else ""}">{bar}{shares}</td>'
        f'<td class="n" title="{kv.wasted_slots} of {kv.used_slots} slots">{_part(kv.wasted_slots, kv.used_slots)}</td>'
        f'<td class="n" title="{_found(load, lately)}">{_part(kv.found_tokens, kv.queried_tokens)}</td>'
        f'<td class="n" title="{_preempted(load, lately)}">{preempted}</td>'
        f'<td class="n" title="{_saved(load)}">{_guessed(load)}</td>'
        f'<td class="n">{as_count(load.prompt_tokens)} → {as_count(load.output_tokens)}</td></tr>'
    )


def _part(part: int, whole: int) -> str:
    return _share(part / whole) if whole else NO_VALUE


def _share(share: float) -> str:
    return escape(as_share(share))


def _blocks(load: WorkerLoad) -> str:
    free = load.blocks_total - load.blocks_used - load.blocks_cached
    return (
        f"{load.blocks_used} of {load.blocks_total} blocks used, {load.blocks_cached} idle ones keep cached prefixes, "
        f"{free} empty"
    )


def _memory(record: WorkerRecord) -> str:
    memory, ranks = record.memory, record.ranks
    if not memory.tokens:
        return ""
    held = memory.weights_bytes + memory.kv_pool_bytes
    each = f"\nOf both, {as_bytes(held // ranks)} on each of {ranks} ranks" if ranks > 1 else ""
    tier = as_bytes(memory.host_tier_bytes) if memory.host_tier_bytes else "none"
    return (
        f"\nKV pool {as_bytes(memory.kv_pool_bytes)}: {as_count(memory.tokens)} tokens of "
        f"{as_bytes(memory.token_bytes)} each fit, or {memory.sequences} sequences of the greatest length"
        f"\nWeights {as_bytes(memory.weights_bytes)} · host tier {tier}{each}"
    )


def _found(load: WorkerLoad, lately: Sharing | None) -> str:
    kv = load.kv
    said = f"{as_count(kv.found_tokens)} of {as_count(kv.queried_tokens)} tokens since the start"
    if lately and lately.queried_tokens:
        share, queried = _part(lately.found_tokens, lately.queried_tokens), as_count(lately.queried_tokens)
        said += f"; {share} of {queried} in the last minute"
    return (
        f"{said}\n{kv.forks} forks, {kv.copied_blocks} blocks copied on write"
        f"\n{kv.evicted_blocks} cached blocks evicted, {kv.spilled_blocks} of them to the host tier, "
        f"{kv.returned_blocks} came back"
    )


def _guessed(load: WorkerLoad) -> str:
    counts = load.speculation
    return (
        f"{_part(counts.accepted_tokens, counts.proposed)} · {counts.step_tokens:.2f}" if counts.proposed else NO_VALUE
    )


def _saved(load: WorkerLoad) -> str:
    counts = load.speculation
    return (
        f"{as_count(counts.accepted_tokens)} of {as_count(counts.proposed)} draft tokens accepted since the start; a "
        f"sequence gets {counts.step_tokens:.2f} tokens per step; {counts.saved_seconds:.1f} s saved"
    )


def _preempted(load: WorkerLoad, lately: Sharing | None) -> str:
    said = (
        f"{load.preemptions} preempted since the start: {load.kv.preempted_swapped} went on with blocks from the host "
        f"tier, {load.kv.preempted_recomputed} computed tokens again; some do both, some neither"
    )
    return said + (f"\n{lately.preemptions} preempted in the last minute" if lately else "")


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
        f'<td class="b-stages" title="{hint}">{_bar([(STAGE_COLOURS[s.name], s.share) for s in parts])}</td>'
        f'<td class="n"{handoff}>{as_bytes(record.handoff_bytes) if record.handoff_bytes else NO_VALUE}</td></tr>'
    )


def _limit(limit_ms: float | None) -> str:
    return "no limit" if limit_ms is None else f"limit {as_ms(limit_ms)}"


def _handoff(record: FinishedRecord) -> str:
    said = "nothing moved: the decode worker had all of the KV"
    if record.handoff_bytes:
        way = f" over {record.transport}" if record.transport else ""
        said = f"{as_bytes(record.handoff_bytes)}{_codec(record.codec)}{way}{', sealed' if record.sealed else ''}"
    rate = handoff_rate(record)
    speed = [as_rate(rate)] if rate is not None else []
    waits = [f"waited {as_ms(record.grant_ms)} for room", f"{as_ms(record.exposed_ms)} exposed"]
    return " · ".join([said, *speed, *waits])


def table(heads: Sequence[str], rows: Iterable[str]) -> str:
    body = f"<thead><tr>{''.join(heads)}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<div class="b-scroll"><table class="b-table">{body}</table></div>'


def _stop(name: str, note: str, ms: float, colour: str) -> str:
    return f'<div style="border-color:{colour}"><b>{name}</b><span>{note}</span><em>{as_ms(ms)}</em></div>'


def key(colour: str, word: str) -> str:
    return f'<span class="b-key"><i style="background:{colour}"></i>{escape(word)}</span>'
