"""HTML pieces: what they say, and that nothing from a record becomes markup."""

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from core.records import FinishedRecord
from core.slo import SLO
from dashboard import markup
from dashboard.figures import Progress, Rates, Verdict, glance
from dashboard.source import WorkerView
from dashboard.units import as_bytes, as_count, as_ms, as_share
from tests.dashboard.samples import DECODE, PREFILL, finished, worker

EVIL = '"><script>alert(1)</script>'


def text(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html)).strip()


def tags(html: str) -> set[str]:
    found: set[str] = set()

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            assert not [name for name, _ in attrs if name not in ("class", "style", "title", "data-tile")]
            found.add(tag)

    Reader().feed(html)
    return found


def view(**changes: Any) -> WorkerView:
    record = worker(**changes)
    return WorkerView(record.epoch, record.role, record.load, "ready", 0.5, record)


def test_nothing_from_a_record_becomes_markup() -> None:
    record = finished(outcome="failed", reason=EVIL, model=EVIL, prefill_worker=EVIL, decode_worker=EVIL)
    pieces = [
        markup.requests([(record, Verdict.FAILED)], record.ended_at),
        markup.way(record),
        markup.workers([view(epoch=EVIL, model=EVIL, address=EVIL, device=EVIL, dtype=EVIL)]),
        markup.header([EVIL], 1, 1),
        markup.answer(EVIL, running=True),
    ]
    for piece in pieces:
        assert tags(piece) <= {"div", "span", "b", "i", "em", "code", "table", "thead", "tbody", "tr", "th", "td"}


def test_tiles() -> None:
    records = [finished(ended_at=100.0), finished(ended_at=100.0, outcome="failed")]
    html = markup.tiles(glance(records, SLO(100, 10), 100.0, 60.0), Progress(3, 1, 4), Rates(5.0, 1234.0, 2 << 20))
    said = text(html)
    for part in ("0.20 req/s", "50% of 2 good", "50 ms p50", "p95 50 ms · p99 50 ms", "5.0 ms p50", "5 requests"):
        assert part in said
    for part in ("3 waiting", "1.2k tokens/s", "5 prompt tokens/s", "2.0 MiB/s"):
        assert part in said


def test_tiles_of_nothing() -> None:
    said = text(markup.tiles(glance([], SLO(100, 10), 100.0, 60.0), Progress(0, 0, 0), Rates(0, 0, 0)))
    assert said.count("no request yet") == 3 and "0 waiting" in said


def test_workers_say_role_state_and_kv_use() -> None:
    silent = WorkerView(DECODE, "decode", worker().load, "silent", 12.4, None)
    said = text(markup.workers([view(), silent]))
    assert "prefill 3fa2c1 ready 3 1 25% 1.2k 3.4k" in said
    assert "decode 91bc44 silent for 12 s" in said


def test_last_requests_say_outcome_and_stages() -> None:
    late, lost = finished(attempts=2), finished(outcome="failed", reason="worker lost", output_tokens=0)
    html = markup.requests([(late, Verdict.LATE), (lost, Verdict.FAILED)], late.ended_at + 3)
    said = text(html)
    assert "3 s ago late · 2 attempts 20 → 41 50 ms 5.0 ms 250 ms 96 KiB" in said
    assert "failed : worker lost" in said
    assert 'title="queue 4.0 ms · prefill 40 ms · handoff 46 ms · decode 200 ms"' in html


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (
            finished(),
            "gateway queued 4.0 ms → prefill 3fa2c1: 20 tokens, 16 cached 40 ms → 96 KiB moved 46 ms → "
            "decode 91bc44: 41 tokens 200 ms TTFT 50 ms TPOT 5.0 ms total 250 ms",
        ),
        (  # the short path: straight to the decode worker
            finished(prefill_worker="", handoff_bytes=0, cached_tokens=0),
            "gateway queued 4.0 ms → decode 91bc44: 41 tokens 200 ms TTFT 50 ms TPOT 5.0 ms total 250 ms",
        ),
        (  # the first token was the last
            finished(output_tokens=1, handoff_bytes=0, e2e_ms=50.0),
            "gateway queued 4.0 ms → prefill 3fa2c1: 20 tokens, 16 cached 40 ms TTFT 50 ms TPOT \u2013 total 50 ms",
        ),
    ],
)
def test_way(record: FinishedRecord, said: str) -> None:
    assert text(markup.way(record)) == said


def test_units() -> None:
    assert [as_ms(ms) for ms in (0.0, 4.26, 42.4)] == ["0.0 ms", "4.3 ms", "42 ms"]
    assert [as_ms(ms) for ms in (1240.0, 120_000.0)] == ["1.24 s", "120 s"]
    assert [as_bytes(size) for size in (0, 512, 96 << 10, 3 << 20, 5 << 29)] == [
        "0 KiB", "0.5 KiB", "96 KiB", "3.0 MiB", "2.5 GiB",
    ]  # fmt: skip
    assert [as_count(number) for number in (7, 812.4, 1234, 3.4e6)] == ["7", "812", "1.2k", "3.4M"]
    assert [as_share(share) for share in (0, 0.001, 0.5, 0.999, 1)] == ["0%", "<1%", "50%", ">99%", "100%"]


def test_a_worker_is_told_by_the_start_of_its_epoch() -> None:
    assert markup.short(PREFILL) == "3fa2c1"
