"""Writes the table of workers as HTML. All text from records is escaped."""

from collections.abc import Mapping, Sequence
from html import escape

from dashboard.drawing.markup import NO_VALUE, bar, codec_note, escaped_share, key, short, table
from dashboard.drawing.palette import NEUTRAL_COLOUR, PALE_ALPHA, STAGE_COLOURS, STATE_COLOURS
from dashboard.reading.figures import Sharing
from dashboard.reading.source import WorkerView
from dashboard.units import as_bytes, as_count
from infra.redis.records import WorkerRecord
from infra.redis.worker_load import WorkerLoad

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


def _device(record: WorkerRecord) -> str:
    return f"{record.ranks} ranks on {record.device}" if record.ranks > 1 else record.device


def _precision(record: WorkerRecord) -> str:
    weights = "" if record.quantization == "none" else f", {record.quantization} weights"
    kv = "" if record.kv_dtype in ("", record.dtype) else f", {record.kv_dtype} KV"
    return record.dtype + weights + kv


def _links(record: WorkerRecord) -> str:
    goes = "to" if record.role == "prefill" else "from"
    return "".join(
        f"\nKV {goes} {link.peer[:6]}{codec_note(link.codec)} over {link.transport}{', sealed' if link.sealed else ''}"
        for link in record.links
    )


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
    filled = bar([(colour, used), (colour + PALE_ALPHA, min(cached, 1.0 - used))])
    shares = f"<b>{escaped_share(used)}</b><em>{'+' + escaped_share(cached) if cached else ''}</em>"
    preempted = f"{kv.preempted_swapped} / {kv.preempted_recomputed}" if load.preemptions else "0"
    return (
        f'<tr class="b-{view.state}"><td title="{escape(hint)}">{key(colour, view.role)}'
        f"<code>{short(view.epoch)}</code></td><td>{key(STATE_COLOURS[view.state], state)}</td>"
        f'<td class="n">{load.running}</td><td class="n">{load.waiting}</td>'
        f'<td class="b-kv" title="{_blocks(load)}{_memory(record) if record else ""}">{filled}{shares}</td>'
        f'<td class="n" title="{kv.wasted_slots} of {kv.used_slots} slots">{_part(kv.wasted_slots, kv.used_slots)}</td>'
        f'<td class="n" title="{_found(load, lately)}">{_part(kv.found_tokens, kv.queried_tokens)}</td>'
        f'<td class="n" title="{_preempted(load, lately)}">{preempted}</td>'
        f'<td class="n" title="{_saved(load)}">{_guessed(load)}</td>'
        f'<td class="n">{as_count(load.prompt_tokens)} → {as_count(load.output_tokens)}</td></tr>'
    )


def _part(part: int, whole: int) -> str:
    return escaped_share(part / whole) if whole else NO_VALUE


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
        found, queried = _part(lately.found_tokens, lately.queried_tokens), as_count(lately.queried_tokens)
        said += f"; {found} of {queried} in the last minute"
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
