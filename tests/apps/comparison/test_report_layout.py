"""The report in a real browser, at a desk's width and a telephone's."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from specdec.apps.comparison.report import write_report
from tests.apps.comparison.reported import COSTS, EIGHT, FIGURES, HOSTILE, as_merge, build, letters
from tests.support.browser import resize

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

LAYOUT = """
const box = (element) => { const r = element.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; };
const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
document.querySelectorAll("details").forEach((details) => { details.open = true; });
return {
  width: innerWidth,
  scrollWidth: document.documentElement.scrollWidth,
  sections: all("section, header").map(box),
  figures: all("figure").map(box),
  svgs: all("svg").map((svg) => ({
    title: svg.getAttribute("aria-label"),
    box: box(svg),
    texts: all("text", svg).map((text) => {
      const m = text.getScreenCTM();
      const size = parseFloat(getComputedStyle(text).fontSize) * Math.hypot(m.a, m.b);
      return {text: text.textContent, box: box(text), size};
    }),
  })),
  clipped: all("td, th, dd, summary, figcaption, .sample, p, h2").filter((e) => e.scrollWidth > e.clientWidth + 1
    && getComputedStyle(e).display !== "inline").map((e) => e.textContent),
  outside: all("td, th").filter((e) => {
    const scroll = e.closest(".scroll"), offset = e.getBoundingClientRect().right - scroll.getBoundingClientRect().left;
    return offset + scroll.scrollLeft > scroll.scrollWidth + 1;
  }).map((e) => e.textContent),
};
"""


def laid_out(browser: Any, path: Path, width: int) -> dict[str, Any]:
    """Where everything in a page is, in a window of this width."""
    resize(browser, width, 844)
    browser.get(path.as_uri())
    layout: dict[str, Any] = browser.execute_script(LAYOUT)
    return layout


def overlap(one: Sequence[float], other: Sequence[float], tolerance: float) -> bool:
    across, down = (min(one[i + 2], other[i + 2]) - max(one[i], other[i]) for i in (0, 1))
    return across > tolerance and down > tolerance


def overlaps(boxes: Sequence[Sequence[float]], tolerance: float = 1.0) -> list[tuple[int, int]]:
    return [
        (first, second)
        for second in range(len(boxes))
        for first in range(second)
        if overlap(boxes[first], boxes[second], tolerance)
    ]


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("speeds", [{"fast": 4.0, "slow": 0.5}, EIGHT, HOSTILE], ids=["few", "eight", "hostile"])
def test_the_page_fits(browser: Any, tmp_path: Path, width: int, speeds: dict[str, float]) -> None:
    path = tmp_path / "report.html"
    comparison = build(
        speeds, num_prompts=8, lengths=[3, 1, 4, 17, 2], categories=["code", "p" * 60], wrong=list(speeds)
    )
    write_report(path, [comparison, build(speeds, settings={"temperature": 1.0})], letters, COSTS)
    layout = laid_out(browser, path, width)
    assert layout["width"] == width
    assert layout["scrollWidth"] <= width
    assert overlaps(layout["sections"]) == []
    assert overlaps(layout["figures"]) == []
    assert layout["clipped"] == []
    assert layout["outside"] == []
    assert len(layout["svgs"]) == 2 * len(FIGURES)
    for svg in layout["svgs"]:
        left, top, right, bottom = svg["box"]
        assert 0 <= left < right <= width
        for text in svg["texts"]:
            assert text["size"] >= 8, (svg["title"], text)
            own = text["box"]
            assert own[0] >= left - 1, (svg["title"], text)
            assert own[1] >= top - 1, (svg["title"], text)
            assert own[2] <= right + 1, (svg["title"], text)
            assert own[3] <= bottom + 1, (svg["title"], text)
        pairs = overlaps([text["box"] for text in svg["texts"]], tolerance=3.0)
        assert [(svg["texts"][first], svg["texts"][second]) for first, second in pairs] == [], svg["title"]


@pytest.mark.parametrize("width", [1280, 390])
def test_the_part_on_merges_fits(browser: Any, tmp_path: Path, width: int) -> None:
    names = ["suffix", "token_recycling", "a_strategy_with_quite_a_long_name_of_its_own"]
    path = tmp_path / "report.html"
    write_report(path, [as_merge(build({"fast": 4.0, "slow": 0.5}), "fast", names)], letters, COSTS)
    layout = laid_out(browser, path, width)
    assert layout["scrollWidth"] <= width
    assert overlaps(layout["figures"]) == []
    assert layout["clipped"] == []
    assert len(layout["svgs"]) == len(FIGURES) + 2
    for svg in layout["svgs"]:
        pairs = overlaps([text["box"] for text in svg["texts"]], tolerance=3.0)
        assert [(svg["texts"][first], svg["texts"][second]) for first, second in pairs] == [], svg["title"]


def darkness(browser: Any, x: float, top: float, bottom: float) -> float:
    """The median darkness of a column of pixels, from 0, white, to 255: text fills less than half of one."""
    image = pytest.importorskip("PIL.Image").open(io.BytesIO(browser.get_screenshot_as_png())).convert("L")
    pixels = [255 - image.getpixel((int(x), y)) for y in range(int(top) + 1, int(bottom) - 1)]
    return float(sorted(pixels)[len(pixels) // 2])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_telephone_an_edge_that_hides_columns_has_a_shadow(browser: Any, tmp_path: Path, scheme: str) -> None:
    path = tmp_path / "report.html"
    write_report(path, [build({"fast": 4.0, "slow": 0.5}, num_prompts=8)], letters, COSTS)
    preferred = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": preferred})
    laid_out(browser, path, 360)
    (region,) = browser.find_elements("css selector", ".scroll")
    heading, row = (region.find_element("css selector", name) for name in ("thead th", "tbody th"))
    hidden = browser.execute_script("return arguments[0].scrollWidth - arguments[0].clientWidth", region)
    assert hidden > 50
    for scrolled, shows_left, shows_right in ((0, False, True), (hidden // 2, True, True), (hidden, True, False)):
        browser.execute_script("arguments[0].scrollLeft = arguments[1]", region, scrolled)
        box, first = region.rect, row.rect
        top, bottom = box["y"], box["y"] + box["height"]
        assert first["x"] == heading.rect["x"] == box["x"]  # the names stay where they are
        left, right = (
            darkness(browser, x, top, bottom) for x in (first["x"] + first["width"] + 1, box["x"] + box["width"] - 2)
        )
        assert (left > 40, right > 40) == (shows_left, shows_right), scrolled
        assert {value for value in (left, right) if value <= 40} <= {0.0}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_a_table_scrolls_by_keyboard_and_one_that_fits_has_no_shadow(browser: Any, tmp_path: Path) -> None:
    keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
    path = tmp_path / "report.html"
    write_report(path, [build({"fast": 4.0, "slow": 0.5}, num_prompts=8)], letters, COSTS)
    laid_out(browser, path, 360)
    (region,) = browser.find_elements("css selector", ".scroll")
    browser.find_element("css selector", "body").send_keys(keys.TAB)
    assert browser.switch_to.active_element == region
    assert region.value_of_css_property("outline-style") == "solid"
    region.send_keys(keys.ARROW_RIGHT)
    moved = "return arguments[0].scrollLeft"
    waiting = pytest.importorskip("selenium.webdriver.support.wait").WebDriverWait
    waiting(browser, 10).until(lambda _: browser.execute_script(moved, region) > 0)
    laid_out(browser, path, 1280)
    (region,) = browser.find_elements("css selector", ".scroll")
    box = region.rect
    assert darkness(browser, box["x"] + box["width"] - 2, box["y"], box["y"] + box["height"]) == 0.0


def test_nothing_in_the_page_runs_or_is_refused(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(path, [build(HOSTILE)], lambda ids: "<script>document.title = 'run'</script>" * len(ids), COSTS)
    browser.get(path.as_uri())
    assert browser.title.startswith("specdec")
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert browser.execute_script("return document.scripts.length") == 0
