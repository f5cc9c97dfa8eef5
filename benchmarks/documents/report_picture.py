"""README's ``compare`` command run as it stands, and pictures of the report that it writes: a desk's and a telephone's.

    python -m benchmarks report_picture

The command is embedded in the pictures as the text chunk ``Command``, so that a test can compare it with README's. It
needs SmolLM2 (``make real-model``), the extra ``dev``, and chromium with its driver.
"""

import argparse
import io
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.documents.first_screen import README

DOCS = README.parent / "docs"
PICTURES = {DOCS / "report.png": (896, 1050), DOCS / "report-phone.png": (390, 1560)}  # width and height
_FOLDER = README.parent / "build" / "report_picture"


def command() -> str:
    """README's own command."""
    found = re.findall(r"^specdec compare .*$", README.read_text(encoding="utf-8"), flags=re.MULTILINE)
    if len(found) != 1:
        raise SystemExit(f"README.md has {len(found)} lines that begin with `specdec compare`; there must be one")
    return str(found[0])


def photograph(report: Path, said: str) -> None:
    """Write both pictures of a report, with the command in them."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    browser = _browser()
    try:
        for picture, (width, height) in PICTURES.items():
            metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
            browser.get(report.as_uri())
            image, text = Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB"), PngInfo()
            text.add_text("Command", said)
            image.save(picture, optimize=True, pnginfo=text)
            print(picture)
    finally:
        browser.quit()


def _browser() -> Any:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        raise SystemExit("chromium and chromedriver must be installed")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in ("headless", "no-sandbox", "disable-gpu", "hide-scrollbars", f"user-data-dir={_FOLDER / 'profile'}"):
        options.add_argument(f"--{flag}")
    return webdriver.Chrome(options=options, service=Service(driver))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    _FOLDER.mkdir(parents=True, exist_ok=True)
    said = command()
    _, *arguments = shlex.split(said)
    subprocess.run([sys.executable, "-m", "specdec", *arguments], cwd=_FOLDER, check=True)
    report = _FOLDER / "report.html"
    if not report.is_file():
        raise SystemExit(f"{said} wrote no report.html")
    photograph(report, said)


if __name__ == "__main__":
    main()
