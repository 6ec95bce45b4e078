"""HTML pieces: what they say, and that nothing from a record becomes markup."""

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from contracts.slo import Objective
from dashboard.drawing import markup, requests_markup, workers_markup
from dashboard.drawing.palette import OUTCOME_COLOURS, STAGE_COLOURS
from dashboard.reading.figures import Outcome, RequestCounts, Sharing, TokenRates, glance
from dashboard.reading.source import WorkerView
from dashboard.units import as_bytes, as_count, as_ms, as_rate, as_share
from infra.redis.records import FinishedRecord, KVLink, Memory
from infra.redis.worker_load import KVCounts, SpeculationCounts, WorkerLoad
from tests.dashboard.samples import DECODE, PREFILL, finished, refused, worker

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


def hints(html: str) -> set[str]:
    return set(re.findall(r'title="([^"]*)"', html))


def view(**changes: Any) -> WorkerView:
    record = worker(**changes)
    return WorkerView(record.epoch, record.role, record.load, "ready", 0.5, record)


def test_nothing_from_a_record_becomes_markup() -> None:
    record = finished(outcome="failed", reason=EVIL, model=EVIL, prefill_worker=EVIL, decode_worker=EVIL)
    pieces = [
        requests_markup.requests([(record, Outcome.FAILED)], record.ended_at),
        requests_markup.way(record),
        workers_markup.workers([view(epoch=EVIL, model=EVIL, address=EVIL, device=EVIL, dtype=EVIL)], {}),
        markup.header([EVIL], 1, 1),
        markup.answer(EVIL, running=True),
    ]
    for piece in pieces:
        assert tags(piece) <= {"div", "span", "b", "i", "em", "code", "table", "thead", "tbody", "tr", "th", "td"}


def test_tiles() -> None:
    records = [finished(ended_at=100.0), finished(ended_at=100.0, outcome="failed"), refused(ended_at=100.0)]
    html = markup.tiles(glance(records, 100.0, 60.0), RequestCounts(3, 1, 4, 2), TokenRates(5.0, 1234.0, 2 << 20))
    said = text(html)
    for part in (
        "0.20 req/s",
        "50% of 2 good, 1 refused",
        "50 ms p50",
        "p95 50 ms · p99 50 ms",
        "5.0 ms p50",
        "5 requests",
    ):
        assert part in said
    for part in (
        "3 waiting, 2 at the gate",
        "1.2k tokens/s",
        "5 prompt tokens/s",
        "2.0 MiB/s",
        "80% of prompt 32 of 40 cached",
    ):
        assert part in said


def test_workers_say_role_state_and_kv_use() -> None:
    silent = WorkerView(DECODE, "decode", worker().load, "silent", 12.4, None)
    said = text(workers_markup.workers([view(), silent], {}))
    assert (
        "prefill 3fa2c1 ready 3 1 25% \u2013 \u2013 0 \u2013 1.2k → 3.4k" in said
    )  # nothing shared, nothing to say of it
    assert "decode 91bc44 silent for 12 s" in said


GUESSES = SpeculationCounts(works=100, guessed=20, proposed=40, accepted=(10, 6, 2), saved_seconds=1.5)


def test_workers_say_what_sharing_saves_and_where_memory_goes() -> None:
    counts = KVCounts(
        queried_tokens=4000,
        found_tokens=3000,
        forks=6,
        copied_blocks=5,
        evicted_blocks=9,
        spilled_blocks=8,
        returned_blocks=7,
        preempted_swapped=3,
        preempted_recomputed=2,
        used_slots=1600,
        wasted_slots=80,
    )
    load = WorkerLoad(
        blocks_total=400, blocks_used=100, blocks_cached=160, preemptions=4, kv=counts, speculation=GUESSES
    )
    memory = Memory(3 << 30, 2 << 30, 512 << 20, 96 << 10, 6400, 3)
    html = workers_markup.workers([view(load=load, memory=memory)], {PREFILL: Sharing(200, 20, 1)})
    assert "25% +40% 5% 75% 3 / 2 45% · 1.18 0 → 0" in text(html)
    bar = re.findall(r"width:([\d.]+)%;background:(#\w+)", html)
    assert [share for share, _ in bar] == ["25.00", "40.00"] and len({colour for _, colour in bar}) == 2
    assert hints(html) >= {
        "18 of 40 draft tokens accepted since the start; a sequence gets 1.18 tokens per step; 1.5 s saved",
        "100 of 400 blocks used, 160 idle ones keep cached prefixes, 140 empty\n"
        "KV pool 2.0 GiB: 6.4k tokens of 96 KiB each fit, or 3 sequences of the greatest length\n"
        "Weights 3.0 GiB · host tier 512.0 MiB",
        "80 of 1600 slots",
        "3.0k of 4.0k tokens since the start; 10% of 200 in the last minute\n"
        "6 forks, 5 blocks copied on write\n9 cached blocks evicted, 8 of them to the host tier, 7 came back",
        "4 preempted since the start: 3 went on with blocks from the host tier, 2 computed tokens again; "
        "some do both, some neither\n1 preempted in the last minute",
    }


def test_a_workers_ranks_are_said_with_the_memory_of_each() -> None:
    memory = Memory(weights_bytes=3 << 30, kv_pool_bytes=2 << 30, tokens=6400)
    found = "\n".join(hints(workers_markup.workers([view(memory=memory, ranks=4, device="cuda:0")], {})))
    assert " · 4 ranks on cuda:0 · " in found
    assert "host tier none\nOf both, 1.2 GiB on each of 4 ranks" in found


def test_last_requests_say_outcome_and_stages() -> None:
    late = finished(attempts=2, samples=4)
    lost = finished(outcome="failed", reason="worker lost", output_tokens=0, cached_tokens=0, handoff_bytes=0)
    html = requests_markup.requests([(late, Outcome.LATE), (lost, Outcome.FAILED)], late.ended_at + 3)
    said = text(html)
    assert "3 s ago late · 4 samples · 2 attempts 20 → 41 16 50 ms 5.0 ms 250 ms 96 KiB" in said
    assert "failed : worker lost 20 → 0 \u2013 \u2013 \u2013 250 ms" in said and "1 samples" not in said
    assert 'title="waiting 10 ms · prefill 40 ms · handoff 46 ms · decode 200 ms"' in html


def test_a_refusal_is_told_from_a_failure_by_word_and_colour_and_has_no_decode() -> None:
    html = requests_markup.requests([(refused(), Outcome.REFUSED)], refused().ended_at)
    assert "refused : objective_out_of_reach 20 → 0 \u2013 \u2013 \u2013 480 ms" in text(html)
    bar = re.findall(r"<i style=\"width:([\d.]+)%;background:(#\w+)\"", html)
    assert bar[-4:] == [
        ("100.00", STAGE_COLOURS["waiting"]),
        *[("0.00", STAGE_COLOURS[s]) for s in ("prefill", "handoff", "decode")],
    ]
    assert len(set(OUTCOME_COLOURS.values())) == len(Outcome) and OUTCOME_COLOURS[Outcome.REFUSED] in html
    assert OUTCOME_COLOURS[Outcome.FAILED] not in html and "refused: 429 or 503" in markup.legend({})


def test_the_legend_counts_refusals_by_their_codes() -> None:
    said = text(markup.legend({"rate_limit_exceeded": 12, "objective_out_of_reach": 41, EVIL: 1}))
    assert said.endswith(
        "refused since the gateways' start: 41 objective_out_of_reach, 12 rate_limit_exceeded, "
        "1 &quot;&gt;&lt;script&gt;alert(1)&lt;/script&gt;"
    )


def test_a_request_says_what_it_was_judged_by() -> None:
    record = finished(good=False, objective=Objective(tpot_ms=4.0))
    html = requests_markup.requests([(record, Outcome.LATE)], record.ended_at)
    assert 'title="no limit">50 ms<' in html and 'title="limit 4.0 ms">5.0 ms<' in html


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (
            finished(),
            "gateway waited 10 ms → prefill 3fa2c1: 20 tokens, 16 cached 40 ms → 96 KiB moved 46 ms → "
            "decode 91bc44: 41 tokens 200 ms TTFT 50 ms TPOT 5.0 ms total 250 ms "
            "96 KiB over shm · 98 MB/s · waited 3.0 ms for room · 0.4 ms exposed",
        ),
        (  # the short path: straight to the decode worker
            finished(prefill_worker="", handoff_bytes=0, cached_tokens=0),
            "gateway waited 10 ms → decode 91bc44: 41 tokens 200 ms TTFT 50 ms TPOT 5.0 ms total 250 ms",
        ),
        (  # … which had a part of the prompt
            finished(prefill_worker="", handoff_bytes=0),
            "gateway waited 10 ms → decode 91bc44: 41 tokens, 16 of the prompt cached 200 ms "
            "TTFT 50 ms TPOT 5.0 ms total 250 ms",
        ),
        (  # the decode worker had all of the KV
            finished(handoff_bytes=0),
            "gateway waited 10 ms → prefill 3fa2c1: 20 tokens, 16 cached 40 ms → nothing moved 46 ms → "
            "decode 91bc44: 41 tokens 200 ms TTFT 50 ms TPOT 5.0 ms total 250 ms "
            "nothing moved: the decode worker had all of the KV · waited 3.0 ms for room · 0.4 ms exposed",
        ),
        (  # the first token was the last
            finished(output_tokens=1, handoff_bytes=0, e2e_ms=50.0),
            "gateway waited 10 ms → prefill 3fa2c1: 20 tokens, 16 cached 40 ms TTFT 50 ms TPOT \u2013 total 50 ms",
        ),
    ],
)
def test_way(record: FinishedRecord, said: str) -> None:
    assert text(requests_markup.way(record)) == said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"transport": "tcp", "sealed": True, "codec": "fp8"}, "96 KiB as fp8 over tcp, sealed · 98 MB/s · waited"),
        ({"handoff_bytes": 3 << 30}, "3.0 GiB over shm · 3221.2 GB/s · waited"),
        ({"send_ms": 0.0}, "96 KiB over shm · waited"),  # too quick to be measured
        ({"transport": ""}, "96 KiB · 98 MB/s · waited"),  # a worker that did not say
        ({"handoff_bytes": 0, "send_ms": 0.0}, "nothing moved: the decode worker had all of the KV · waited"),
    ],
)
def test_a_line_for_each_handoff(changes: dict[str, Any], said: str) -> None:
    record = finished(**changes)
    line = said + " 3.0 ms for room · 0.4 ms exposed"
    assert line in text(requests_markup.way(record))
    assert line in hints(requests_markup.requests([(record, Outcome.GOOD)], record.ended_at))


def test_workers_say_how_kv_passes() -> None:
    links = [KVLink(DECODE, "tcp", True, "int8"), KVLink(EVIL, "shm", False, "none")]
    html = workers_markup.workers([view(links=links), view(epoch=DECODE, links=links[1:])], {})
    assert any(
        hint.endswith("\nKV to 91bc44 as int8 over tcp, sealed\nKV to &quot;&gt;&lt;scr over shm")
        for hint in hints(html)
    )
    assert any(hint.endswith(":40001\nKV from &quot;&gt;&lt;scr over shm") for hint in hints(html))


def test_units() -> None:
    assert [as_rate(rate) for rate in (4e5, 9.84e6, 98e6, 1.25e9)] == ["0.4 MB/s", "9.8 MB/s", "98 MB/s", "1.2 GB/s"]
    assert [as_ms(ms) for ms in (0.0, 4.26, 42.4)] == ["0.0 ms", "4.3 ms", "42 ms"]
    assert [as_ms(ms) for ms in (1240.0, 120_000.0)] == ["1.24 s", "120 s"]
    assert [as_bytes(size) for size in (0, 512, 96 << 10, 3 << 20, 5 << 29)] == [
        "0 KiB",
        "0.5 KiB",
        "96 KiB",
        "3.0 MiB",
        "2.5 GiB",
    ]
    assert [as_count(number) for number in (7, 812.4, 1234, 3.4e6)] == ["7", "812", "1.2k", "3.4M"]
    assert [as_share(share) for share in (0, 0.001, 0.5, 0.999, 1)] == ["0%", "<1%", "50%", ">99%", "100%"]
