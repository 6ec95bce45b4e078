"""The whole system in a browser: numbers move during a load, Try it shows a request's way, a screenshot is stored."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from playwright.sync_api import expect

from launcher.bench.options import BenchConfig
from launcher.bench.run import BenchRun
from launcher.instance.endpoint import ClientEndpoint
from launcher.stages import StageDisplay
from tests.browser import STEP_MS, chromium, new_page, store_screenshot
from tests.waiting import LONG_DEADLINE_S

LOAD_REQUESTS = 12  # requests, as many as the page's table shows
ANSWER_MS = 60_000  # of a whole story on a machine that others use too


class System(Protocol):
    gateway_url: str
    dashboard_url: str
    redis_url: str


def test_numbers_move_and_a_request_shows_its_way(system: System, tmp_path: Path) -> None:
    with chromium() as browser:
        page = new_page(browser)
        page.goto(system.dashboard_url)
        goodput = page.locator('[data-tile="goodput"]')
        expect(goodput).to_contain_text("Goodput", timeout=STEP_MS)
        expect(page.locator(".b-table").first).to_contain_text("ready", timeout=STEP_MS)
        before = goodput.inner_text()

        load = BenchConfig(rate=6.0, requests=LOAD_REQUESTS, output_tokens="24", warm_up=0)
        gateway = ClientEndpoint(system.gateway_url, "", "")
        run = BenchRun(gateway, gateway.client().model(), StageDisplay())
        with ThreadPoolExecutor(1) as aside:  # Playwright has this thread's event loop
            report = aside.submit(run.load, load).result(timeout=LONG_DEADLINE_S)
        assert report.errors == {} and report.answered == LOAD_REQUESTS
        expect(goodput).not_to_have_text(before, timeout=STEP_MS)
        expect(page.locator('[data-tile="ttft"]')).to_contain_text("p95", timeout=STEP_MS)
        expect(page.locator('[data-tile="tpot"]')).to_contain_text("p95", timeout=STEP_MS)
        expect(page.locator(".b-stages")).to_have_count(LOAD_REQUESTS, timeout=STEP_MS)  # the rows of the last requests

        page.locator("textarea").fill("Tell me a story about a fox and a lantern.")
        page.get_by_role("button", name="Ask").click()
        way = page.locator(".b-way")
        expect(way).to_contain_text("prefill", timeout=ANSWER_MS)
        expect(way).to_contain_text("iB")
        expect(way).to_contain_text("decode")
        expect(page.locator(".b-figures")).to_contain_text("TTFT")
        expect(page.locator(".b-figures")).to_contain_text("TPOT")
        assert page.locator(".b-answer").inner_text().strip()
        assert store_screenshot(page, tmp_path, "dashboard-e2e").stat().st_size > 20_000
