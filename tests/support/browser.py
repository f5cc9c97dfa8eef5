"""Chromium without a window, driven by selenium."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAMS = "chromium", "chromedriver"
_FLAGS = (
    "headless", "no-sandbox", "disable-gpu", "disable-quic", "disable-dev-shm-usage", "no-first-run",
    "disable-background-networking", "disable-component-update", "disable-sync",
)  # fmt: skip


def why_no_browser() -> str:
    """Return what is missing for ``chromium``; empty if nothing is."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


@contextmanager
def chromium(profile: Path, *flags: str) -> Iterator[Any]:
    """Yield a browser, with its profile in an empty folder and any further command-line flags."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    program, driver = (shutil.which(program) for program in PROGRAMS)
    options = webdriver.ChromeOptions()
    options.binary_location = program
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in (*_FLAGS, *flags, f"user-data-dir={profile}"):
        options.add_argument(f"--{flag}")
    browser = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield browser
    finally:
        browser.quit()


def resize(browser: Any, width: int, height: int) -> None:
    """Show pages at this size in pixels, as a telephone does below 600 pixels of width."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
