"""Debian's Chromium for tests, driven by Playwright. A machine without it fails the test: nothing is skipped."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
STEP_MS = 20_000  # deadline of one wait


@contextmanager
def chromium() -> Iterator[Browser]:
    path = shutil.which("chromium")
    if path is None:
        pytest.fail("chromium is not on the PATH; install the Debian package `chromium`")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


def new_page(browser: Browser, scheme: str = "light") -> Page:
    page = browser.new_page(
        viewport={"width": 1400, "height": 900}, color_scheme="dark" if scheme == "dark" else "light"
    )
    page.set_default_timeout(STEP_MS)
    return page


def store_screenshot(page: Page, tmp_path: Path, name: str) -> Path:
    """Stores what the page shows, in `$BATON_ARTIFACTS` if that is set, for a person to look at."""
    folder = Path(os.environ.get("BATON_ARTIFACTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.png"
    page.screenshot(path=path)
    return path
