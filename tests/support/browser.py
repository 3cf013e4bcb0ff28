"""A real browser for tests, where there is one."""

import shutil
from contextlib import contextmanager

import pytest

QUIET = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]


@contextmanager
def chromium():
    """Chromium, driven by playwright; the test is skipped where either is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright here: make setup-browser")
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next((found for name in names if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("no Chromium here: make setup-browser")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=QUIET)
        yield browser
        browser.close()
