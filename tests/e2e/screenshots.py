"""Makes the pictures of the dashboard in docs/pictures again: `python -m tests.e2e.screenshots`.

It starts `baton up` with the demo model, two gateways, keys and objectives, has three tenants ask for half a minute,
and stores what the page shows in Debian's Chromium. Then it stops the workers, so that nothing can be served.
"""

import argparse
import io
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
from PIL import Image
from playwright.sync_api import Page, expect

from infra.keys.api_key import KeyOptions, make_key
from infra.keys.key_file import change_keys
from infra.network.listening import listen
from launcher.instance.instances import Instance, running
from launcher.options import DEMO_NAME, ROOT
from tests.browser import STEP_MS, chromium
from tests.plain_http import PLAIN
from tests.waiting import LONG_DEADLINE_S, wait_until

PICTURES = ROOT / "docs" / "pictures"
MAX_PICTURE_BYTES = 60_000
COLOURS = 256
COLOUR_ROUNDS = 2  # of k-means, so that a legend's dots keep their colours beside large areas
WIDTH, HEIGHT = 1400, 900  # pixels of the window
SETTLE_MS = 1000.0  # until the page has laid out what was asked for
SCROLLED = "document.querySelector('[data-testid=stMain]')"
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0
LOAD_S = 30.0
REQUESTS_TOGETHER = 2  # of each tenant
OBJECTIVES = {"acme": "ttft=2s,tpot=100ms", "batch": "", "tight": "ttft=200ms,tpot=4ms"}
"""Objective of each tenant's key. The last is stricter than a laptop keeps."""
PROMPTS = {"acme": "Tell me a story about a fox.", "batch": "Count the stars. " * 20, "tight": "Hello!"}


@contextmanager
def instance(directory: Path, keys: Path) -> Iterator[Instance]:
    """Runs `baton up`, whose files are below `directory`."""
    os.environ["XDG_STATE_HOME"] = str(directory)  # where `running` looks, too
    options = ["--port=0", f"--dashboard-port={free_port()}", "--gateways=2", f"--api-keys={keys}", "--device=cpu"]
    process = subprocess.Popen([sys.executable, "-m", "launcher", "up", *options], cwd=ROOT)
    try:
        wait_until(lambda: bool(running()) or process.poll() is not None, "the instance", START_TIMEOUT_S)
        yield running()[0]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_TIMEOUT_S)


def free_port() -> int:
    with listen("127.0.0.1", 0) as listener:
        port: int = listener.getsockname()[1]
    return port


def load(url: str, keys: Mapping[str, str]) -> list[str]:
    """Has each tenant ask one request after another for `LOAD_S`. Returns the ids of finished requests, in order."""
    end = time.monotonic() + LOAD_S

    def ask(tenant: str) -> list[str]:
        ids = []
        with httpx.Client(base_url=url, timeout=LONG_DEADLINE_S, verify=PLAIN) as client:
            headers = {"authorization": f"Bearer {keys[tenant]}"}
            body = {"model": DEMO_NAME, "messages": [{"role": "user", "content": PROMPTS[tenant]}], "max_tokens": 48}
            while time.monotonic() < end:
                answer = client.post("/v1/chat/completions", json=body, headers=headers)
                ids += [answer.headers["x-request-id"]] if answer.status_code == 200 else []
                time.sleep(0.0 if answer.status_code == 200 else 0.5)
        return ids

    with ThreadPoolExecutor() as threads:
        found = list(threads.map(ask, [tenant for tenant in keys for _ in range(REQUESTS_TOGETHER)]))
    return [name for ids in found for name in ids]


def store(shown: Page, name: str) -> None:
    """Stores a picture with few colours. Raises `ValueError` if it is too large for a page of documentation."""
    picture = Image.open(io.BytesIO(shown.screenshot())).convert("RGB").quantize(COLOURS, kmeans=COLOUR_ROUNDS)
    path = PICTURES / f"{name}.png"
    picture.save(path, optimize=True)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size} bytes")
    if path.stat().st_size > MAX_PICTURE_BYTES:
        raise ValueError(f"{path} has more than {MAX_PICTURE_BYTES} bytes")


def photograph(page: Page, served: Instance, keys: Mapping[str, str]) -> None:
    page.goto(served.dashboard)
    choose(page, "1 min")
    with ThreadPoolExecutor(1) as aside:  # Playwright has this thread's event loop
        asked = aside.submit(load, served.url, keys)
        page.wait_for_timeout(LOAD_S * 800)
        expect(page.get_by_text("no request yet")).to_have_count(0)
        store(page, "overview")
        ids = asked.result()
    choose(page, "Tenants")
    store(at_its_end(page, "acme"), "tenants")
    choose(page, "One request")
    page.get_by_placeholder("from x-request-id").fill(ids[len(ids) // 2])
    page.keyboard.press("Enter")
    store(at_its_end(page, "Prefill worker"), "one-request")
    for service in running()[0].services:
        if service.name.startswith(("prefill", "decode")):
            os.kill(service.pid, signal.SIGSTOP)
    page.evaluate(f"() => {SCROLLED}.scrollTo(0, 0)")
    expect(page.get_by_text("No request can be served")).to_be_visible(timeout=STEP_MS)
    store(page, "nothing-can-serve")


def choose(page: Page, part: str) -> None:
    page.get_by_role("radio", name=part).or_(page.get_by_role("button", name=part)).first.click()


def at_its_end(page: Page, text: str) -> Page:
    """Scrolls to the page's end, as soon as it shows `text`."""
    expect(page.get_by_text(text).last).to_be_visible(timeout=STEP_MS)
    page.wait_for_timeout(SETTLE_MS)
    page.evaluate(f"() => {SCROLLED}.scrollTo(0, {SCROLLED}.scrollHeight)")
    page.wait_for_timeout(SETTLE_MS)
    return page


def main() -> None:
    argparse.ArgumentParser(prog="python -m tests.e2e.screenshots", description=__doc__).parse_args()
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name, chromium() as browser:
        made = {tenant: make_key(tenant, KeyOptions(slo=slo), time.time()) for tenant, slo in OBJECTIVES.items()}
        operator = make_key("operator", KeyOptions(operator=True), time.time())
        file = Path(name, "keys.json")
        change_keys(file, lambda keys: [operator.record, *(key.record for key in made.values())], create=True)
        with instance(Path(name), file) as served:
            page = browser.new_page(
                viewport={"width": WIDTH, "height": HEIGHT},
                http_credentials={"username": "operator", "password": operator.text},
            )
            photograph(page, served, {tenant: key.text for tenant, key in made.items()})


if __name__ == "__main__":
    main()
