"""A page of another origin, in a real browser, asks the gateway and reads what comes."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from playwright.sync_api import expect

from tests.browser import STEP_MS, chromium, new_page
from tests.e2e.harness.system import System

ASK = """async (url) => {
  const headers = {"content-type": "application/json", "authorization": "Bearer key", "x-request-id": "from-a-page"};
  const ask = body => fetch(url + "/v1/chat/completions", {method: "POST", headers, body: JSON.stringify(body)});
  const messages = [{role: "user", content: "Hello!"}];
  const whole = await ask({messages, max_tokens: 8});
  const stream = await ask({messages, max_tokens: 8, stream: true});
  const wrong = await ask({messages, temperature: 9});
  return {
    answer: (await whole.json()).choices[0].message.content,
    id: whole.headers.get("x-request-id"),
    timing: whole.headers.get("server-timing"),
    events: (await stream.text()).trim().split("\\n\\n").length,
    status: wrong.status,
    code: (await wrong.json()).error.code,
    sealed: await fetch(url + "/stats").then(() => "read", () => "not read"),
  };
}"""


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>another site</title>")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def another_site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_page_of_another_site_asks_and_reads(system: System) -> None:
    with another_site() as site, chromium() as browser:
        page = new_page(browser)
        page.goto(site)
        seen = page.evaluate(ASK, system.gateway_url)
        assert seen["answer"] and seen["id"] == "from-a-page" and "prefill;dur=" in seen["timing"]
        assert seen["events"] > 3 and (seen["status"], seen["code"]) == (400, "invalid_value")
        assert seen["sealed"] == "not read"


def test_the_page_of_the_endpoints_asks_nobody_else(system: System) -> None:
    with chromium() as browser:
        page = new_page(browser)
        outside: list[str] = []
        page.on(
            "request",
            lambda request: None if request.url.startswith(system.gateway_url) else outside.append(request.url),
        )
        page.goto(f"{system.gateway_url}/docs")
        expect(page.get_by_text("/v1/chat/completions", exact=True)).to_be_visible(timeout=STEP_MS)
        page.get_by_text("/v1/chat/completions", exact=True).click()
        page.get_by_text("body", exact=True).first.click()
        expect(page.get_by_text("temperature", exact=True).first).to_be_visible(timeout=STEP_MS)
        assert page.locator("p code").count() > 0
        assert "`" not in (page.locator("main").text_content() or "`") + (page.locator("#about").text_content() or "`")
        assert outside == []
