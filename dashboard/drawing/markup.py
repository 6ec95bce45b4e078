"""Writes pieces of HTML that the pages share, and the head of the main page.

The modules whose names end in `markup` escape all text from records and clients; no other module does.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from dashboard.drawing.palette import OUTCOME_COLOURS, STAGE_COLOURS
from dashboard.reading.figures import Glance, Outcome, RequestCounts, Spread, TokenRates
from dashboard.reading.load_runs import LoadRun
from dashboard.units import as_bytes, as_count, as_ms, as_share

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
MAX_NAMED_RUNS = 3
NO_VALUE = "\u2013"


def tiles(glance: Glance, progress: RequestCounts, rates: TokenRates) -> str:
    """Returns the first line of the page."""
    good_share = glance.good_share()
    refused = glance.counts[Outcome.REFUSED]
    good = f"{escaped_share(good_share)} of {glance.judged()} good" if good_share is not None else "no request yet"
    good += f", {refused} refused" if refused else ""
    goodput = f"{glance.goodput:.2f}" if good_share is not None else NO_VALUE
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
    cached_share = glance.cached_share()
    if cached_share is None:
        return _tile("hits", "Prefix hits", NO_VALUE, "", "no request yet", HITS_HINT)
    note = f"{as_count(glance.cached_tokens)} of {as_count(glance.prompt_tokens)} cached"
    return _tile("hits", "Prefix hits", escaped_share(cached_share), "of prompt", note, HITS_HINT)


def _share_bar(glance: Glance) -> str:
    parts = [(OUTCOME_COLOURS[v], glance.counts[v]) for v in Outcome if v is not Outcome.CANCELLED]
    whole = sum(count for _, count in parts)
    return bar([(colour, count / whole) for colour, count in parts] if whole else [])


def bar(parts: Sequence[tuple[str, float]]) -> str:
    inner = "".join(f'<i style="width:{100 * share:.2f}%;background:{colour}"></i>' for colour, share in parts)
    return f'<span class="b-bar">{inner}</span>'


def codec_note(codec: str) -> str:
    return f" as {codec}" if codec != "none" else ""


def escaped_share(part: float) -> str:
    return escape(as_share(part))


def table(heads: Sequence[str], rows: Iterable[str]) -> str:
    body = f"<thead><tr>{''.join(heads)}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<div class="b-scroll"><table class="b-table">{body}</table></div>'


def key(colour: str, word: str) -> str:
    return f'<span class="b-key"><i style="background:{colour}"></i>{escape(word)}</span>'
