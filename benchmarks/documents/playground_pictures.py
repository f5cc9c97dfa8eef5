"""Pictures of the server's playground: dark at a desktop's width, light at a telephone's.

    python -m benchmarks playground_pictures

Both show one run of the page: a prompt that the server has not seen before, and a step of the strategy's text.
Needs SmolLM2 (``make real-model``), the extra ``dev``, and chromium with its driver.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.documents import screenshot
from benchmarks.documents.first_screen import ROOT
from tests.support.browser import chromium, resize, why_no_browser

PROMPT = "List the ingredients: mix 500 g of flour, 300 g of water, 10 g of salt and 5 g of yeast, then bake."
PICTURES = {"playground-wide-dark.png": (1200, "dark"), "playground-phone-light.png": (390, "light")}  # width, colours
_HEIGHT = 800  # before the page's own height is known
_SECONDS = 120.0
_SEEN = 60  # tokens whose steps are looked at


@contextmanager
def served() -> Iterator[str]:
    """Yield the address of a server of SmolLM2."""
    command = [sys.executable, "-m", "specdec", "serve", "--model", "smollm2", "--backend", "hf", "--port", "0"]
    command += ["--threads", "1", "--log-level", "error"]  # one thread: other programs slow it less
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        line = next((line for line in server.stderr if "http://" in line), "")
        if not line:
            raise SystemExit("the server did not start")
        try:
            yield line[line.index("http://") :].strip()
        finally:
            server.terminate()
            server.stderr.read()


def decode(browser: Any, address: str) -> None:
    """Run the prompt, and select a step of the strategy's text."""
    browser.get(address)
    _wait(browser, "#model", "smollm2")
    browser.find_element("id", "prompt").send_keys(PROMPT)
    browser.find_element("id", "run").click()
    _wait(browser, "#verdict", "same text")
    select_step(browser)


def select_step(browser: Any) -> None:
    """Move to the step with the largest draft of those with two accepted nodes or more, by arrow keys."""
    from selenium.webdriver.common.keys import Keys

    text, seen = browser.find_element("css selector", "[data-column=drafted] .text"), list[tuple[bool, int]]()
    text.send_keys(Keys.HOME)
    for _ in range(_SEEN):
        label = browser.find_element("css selector", "#tree svg").get_attribute("aria-label")
        num_nodes, num_accepted = map(int, re.findall(r"\d+", label))
        seen.append((num_accepted >= 2, num_nodes))
        text.send_keys(Keys.ARROW_RIGHT)
    text.send_keys(Keys.HOME, *[Keys.ARROW_RIGHT] * (seen.index(max(seen)) + 1))


def _wait(browser: Any, selector: str, words: str) -> None:
    """Wait until an element's text contains some words."""
    deadline = time.monotonic() + _SECONDS
    while words not in (shown := browser.find_element("css selector", selector).text):
        if time.monotonic() > deadline:
            raise SystemExit(f"{selector} shows {shown!r}, not {words!r}")
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    if reason := why_no_browser():
        raise SystemExit(reason)
    with tempfile.TemporaryDirectory() as folder, served() as address, chromium(Path(folder)) as browser:
        resize(browser, 1200, _HEIGHT)
        decode(browser, address)
        for name, (width, scheme) in PICTURES.items():
            feature = {"name": "prefers-color-scheme", "value": scheme}
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
            resize(browser, width, _HEIGHT)
            resize(browser, width, browser.execute_script("return document.documentElement.scrollHeight"))
            screenshot.save(browser, ROOT / "docs" / name)


if __name__ == "__main__":
    main()
