"""Pictures of a report, made by README's own ``compare`` command, at a desktop's and a telephone's width.

    python -m benchmarks report_picture

The command is embedded in the pictures as the text chunk ``Command``, so that a test can compare it with README's.
Needs SmolLM2 (``make real-model``), the extra ``dev``, and chromium with its driver.
"""

import argparse
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.documents import screenshot
from benchmarks.documents.first_screen import README
from tests.support.browser import chromium, resize, why_no_browser

DOCS = README.parent / "docs"
PICTURES = {DOCS / "report.png": (896, 1050), DOCS / "report-phone.png": (390, 1560)}  # width and height


def command() -> str:
    """README's own command."""
    found = re.findall(r"^specdec compare .*$", README.read_text(encoding="utf-8"), flags=re.MULTILINE)
    if len(found) != 1:
        raise SystemExit(f"README.md has {len(found)} lines that begin with `specdec compare`; expected one")
    return str(found[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    if reason := why_no_browser():
        raise SystemExit(reason)
    run = command()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([sys.executable, "-m", "specdec", *shlex.split(run)[1:]], cwd=folder, check=True)
        report = folder / "report.html"
        if not report.is_file():
            raise SystemExit(f"{run} wrote no report.html")
        with chromium(folder / "profile", "hide-scrollbars") as browser:
            for picture, size in PICTURES.items():
                resize(browser, *size)
                browser.get(report.as_uri())
                screenshot.save(browser, picture, Command=run)


if __name__ == "__main__":
    main()
