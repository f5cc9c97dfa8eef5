"""On a screen of 1,280 pixels no page of the site is wider than the window, and no line of code is cut."""

from pathlib import Path
from typing import Any

import pytest

from tests.site.follow_links import served
from tests.support.browser import resize

SITE = Path(__file__).parent.parent.parent / "build/site"
# Lines of code that don't fit where they are shown: by how much, and the code's beginning.
CUT = """
return Array.from(document.querySelectorAll("pre > code"))
  .filter(code => code.scrollWidth > code.clientWidth + 1)
  .map(code => [code.scrollWidth - code.clientWidth, code.textContent.slice(0, 200)])
"""


@pytest.mark.skipif(not SITE.exists(), reason="the site isn't built: make docs")
def test_no_line_of_code_is_cut_at_1280_pixels(browser: Any) -> None:
    resize(browser, 1280, 900)
    with served(SITE) as home:
        for page in sorted(SITE.rglob("*.html")):
            browser.get(f"{home}{page.relative_to(SITE).as_posix()}")
            assert browser.execute_script(CUT) == [], page.name
            assert browser.execute_script("return document.documentElement.scrollWidth - window.innerWidth") <= 0
