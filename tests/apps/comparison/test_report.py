"""The report: its figures are the runs', nothing in it is a stranger's markup, and nothing is fetched for it."""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from specdec import RequestError
from specdec.apps.comparison import Comparison
from specdec.apps.comparison.figures import plots
from specdec.apps.comparison.figures.axes import look
from specdec.apps.comparison.figures.plots import speed_ups, styles_of
from specdec.apps.comparison.report import identity, numerics_used, samples, verdict, write_report
from specdec.apps.comparison.runs import Run
from specdec.costs import Costs
from specdec.record import PHASES
from tests.apps.comparison.reported import COSTS, EIGHT, FIGURES, HOSTILE, PLAIN, build, letters
from tests.support import byte_tokenizer

matplotlib = pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")
pytest.importorskip("scipy")

SVG = "{http://www.w3.org/2000/svg}"


class Page(HTMLParser):
    """A page as its elements, its attributes and the text of its table cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.rows: list[list[str]] = []
        self._is_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.tags.append(tag)
        self.attributes += attributes
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self._is_cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._is_cell = False

    def handle_data(self, data: str) -> None:
        if self._is_cell:
            self.rows[-1][-1] += data

    @property
    def svgs(self) -> list[ElementTree.Element]:
        """The page's figures."""
        return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", self.text, re.DOTALL)]


@pytest.fixture(name="page")
def _page(tmp_path: Path) -> Any:
    def page(*comparisons: Comparison, decode: Any = letters, costs: Costs | None = None) -> Page:
        path = tmp_path / "report.html"
        write_report(path, comparisons, decode, costs)
        return Page(path.read_text(encoding="utf-8"))

    return page


def test_the_main_table_has_the_runs_figures(page: Any) -> None:
    # 48 tokens take 8 * (1 + 1.1 + 1.2 + 1.3 + 1.4 + 1.5) = 60 seconds at speed 1.
    rows = [[cell.strip() for cell in row] for row in page(build({"fast": 4.0, "slow": 0.5})).rows]
    assert rows[0][0] == "strategy"
    assert rows[1:] == [
        ["■ fast", "3.2", "2.67", "4.00 [4.00, 4.00]", "7.0", "yes", "3.0"],
        ["● autoregressive", "0.8", "1.00", "1", "1.0", "–", "3.0"],
        ["▲ slow", "0.4", "2.67", "0.50 [0.50, 0.50]", "7.0", "yes", "3.0"],
    ]


def test_the_figures_have_titles_labels_and_the_runs_figures(page: Any) -> None:
    svgs = page(build({"fast": 4.0, "slow": 0.5}), costs=COSTS).svgs
    texts = [{"".join(text.itertext()) for text in svg.iter(f"{SVG}text")} for svg in svgs]
    assert len(svgs) == len(FIGURES)
    for svg, shown, (title, x, y) in zip(svgs, texts, FIGURES, strict=True):
        assert svg.get("aria-label") == title
        assert {title, x, y or title} <= shown
    speeds, phases, lengths, _, _, costs = texts
    assert {"fast", "4.00 [4.00, 4.00]", "slow", "0.50 [0.50, 0.50]", "1"} <= speeds
    assert {"fast", "slow", "mean 2.67", "33", "1", "2", "3", "4"} <= lengths  # a third of the steps each: 1, 3 and 4
    assert PLAIN not in lengths
    assert {"fast", "5 ms", PLAIN, "1.88 ms"} <= phases  # (1 + 2 + 3 + 4 + 5) ms over 3 steps, and over 8
    assert {"1", "2", "128"} <= costs


def test_the_marks_are_where_the_figures_are() -> None:
    comparison = build({"fast": 4.0})
    styles = plots.styles_of([comparison])

    def marks(made: tuple[Any, plots.Plot]) -> set[tuple[float, ...]]:
        lines = [line for line in made[0].axes[0].lines if line.get_marker() not in ("None", ".")]
        return {(float(x), float(y)) for line in lines for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)}

    assert sorted(x for x, _ in marks(plots.speed_ups(comparison, styles))) == pytest.approx([1.0, 4.0])
    assert {x for x, _ in marks(plots.by_category(comparison, styles))} == {8 / 3}
    assert marks(plots.by_position(comparison, styles)) == {(0.5, 3.0), (3.5, 1.0), (4.5, 4.0)}
    assert marks(plots.pass_costs(comparison, styles, COSTS)) == {(7.0, 8 / 3), (1.0, 1.0)}
    widths = [bar.get_width() for bar in plots.phases(comparison, styles)[0].axes[0].patches]
    assert widths == pytest.approx([step * share for step in (1 / 3, 1 / 8) for share in (1, 2, 3, 4, 5)])
    heights = [-bar.get_height() for bar in plots.accepted_lengths(comparison, styles)[0].axes[0].patches]
    assert heights == pytest.approx([heights[0], 0, heights[0], heights[0]])
    assert heights[0] > 0


def test_the_verdict_names_a_winner_only_where_every_interval_is_clear(page: Any) -> None:
    assert verdict(build({"fast": 4.0, "slow": 0.5})) == "Fastest: fast, 4.00 [4.00, 4.00] times plain decoding."
    assert (
        verdict(build({"slow": 0.5})) == "Fastest: plain decoding. The next, slow, is 0.50 [0.50, 0.50] times as fast."
    )
    assert verdict(build({})) == f"Nothing to compare: {PLAIN} is the only strategy."
    exact = f"{PLAIN} (exact)"
    assert verdict(build({exact: 0.5}, reference=exact, inexact={PLAIN: "fast", exact: ""})) == (
        "Only plain decoding was run: in exact numerics it is 0.50 [0.50, 0.50] times as fast as in fast numerics."
    )
    assert verdict(build({"fast": 2.0}, num_prompts=1)) == (
        "No winner: 1 prompt gives no interval, which needs 6. Fastest here: fast, 2.00 times plain decoding."
    )
    assert verdict(build({"slow": 0.5}, num_prompts=1)).endswith(
        "Fastest here: plain decoding; the next, slow, 0.50 times as fast."
    )
    unsure = build({"one": 2.0, "other": 2.0})
    assert verdict(unsure) == (
        "one is 2.00 [2.00, 2.00] times as fast as plain decoding. It is 1.00 [1.00, 1.00] times as fast as other, and "
        "the interval contains 1."
    )
    assert verdict(unsure) in page(unsure).text
    assert verdict(build({"one": 1.0, "other": 1.0})).startswith("No winner: ")


def test_too_few_prompts_show_no_interval(page: Any) -> None:
    shown = page(build({"fast": 2.0}, num_prompts=5))
    assert shown.rows[1][3] == "2.00"
    assert "No interval: fewer than 6 prompts." in shown.text
    assert "2.00, no interval" in shown.text
    assert not [cell for row in shown.rows for cell in row if "inf" in cell]
    assert not [svg for svg in shown.svgs if "inf" in "".join(svg.itertext())]


def test_texts_that_differ_are_listed_with_both_tokens_and_the_margin(page: Any) -> None:
    comparison = build({"good": 2.0, "bad": 2.0}, wrong=["bad"])
    assert identity(comparison).startswith("1 of 12 texts is NOT plain decoding's. Numeric ties and defects were not")
    rows = page(comparison).rows
    assert [row[5].strip() for row in rows[1:4]] == ["yes", "no: 1 of 6 differ", "–"]
    assert [cell.strip() for cell in rows[5]] == [
        "▲ bad",
        "prompt 0 (code)",
        "1",
        "2",
        "'v' (99)",
        "'b' (1)",
        "not examined",
        "–",
    ]
    assert page(comparison, decode=None).rows[5][4:6] == ["99", "1"]


def test_every_text_the_same_is_said_and_a_rule_without_that_promise_too(page: Any) -> None:
    assert identity(build({"good": 2.0, "other": 2.0})) == "All 12 texts are plain decoding's, token for token."
    sampled = build({"good": 2.0}, wrong=["good"], promises={PLAIN: "tokens", "good": "distribution"})
    assert identity(sampled) == "Not compared, as their rule does not promise plain decoding's tokens: good."
    shown = page(sampled)
    assert shown.rows[1][5] == "in distribution"
    assert "Texts that differ" not in shown.text


def test_it_says_what_it_takes_to_repeat_it(page: Any) -> None:
    text = page(build({"fast": 2.0}), costs=COSTS).text
    for fact in ("test model", "7 million", "abacus", "2 cores", "Made(fast)", "MatchVerifier", "max_new_tokens=8"):
        assert fact in text
    for fact in ("temperature=0.0", "6 (code 3, prose 3)", "12 of 12: complete", "<dd>5, and", "specdec 0."):
        assert fact in text
    assert "Stopped early" not in text
    stopped = page(build({"fast": 2.0}, left_out=1)).text
    assert "Stopped early" in stopped
    assert "11 of 12: stopped early" in stopped


def test_plain_decoding_in_exact_numerics_is_a_row_and_the_reference_of_texts(page: Any) -> None:
    exact = f"{PLAIN} (exact)"
    numerics, inexact = {PLAIN: "fast", "good": "exact", exact: "exact"}, {PLAIN: "why", "good": "", exact: ""}
    own = {"reference": exact, "numerics": numerics, "inexact": inexact}
    comparison = build({"good": 2.0, exact: 0.8}, wrong=[exact, "good"], **own)
    shown = page(comparison, costs=COSTS)
    rows = [[cell.strip() for cell in row] for row in shown.rows[1:4]]
    assert [(row[0], row[3], row[5]) for row in rows] == [
        ("■ good", "2.00 [2.00, 2.00]", "yes"),
        (f"● {PLAIN}", "1", "–"),
        (f"✖ {exact}", "0.80 [0.80, 0.80]", "–"),
    ]
    assert identity(comparison) == "All 6 texts are plain decoding's, token for token."
    told = (
        f"Numerics: exact, bit-exact. Speed-ups are over {PLAIN}, plain decoding in fast numerics; "
        f"texts in exact numerics are compared with {exact}."
    )
    assert numerics_used(comparison) == told
    assert told in shown.text
    assert f"fast, not bit-exact: why ({PLAIN}); exact, bit-exact (good, {exact})" in shown.text
    assert {sample.strategy for sample in samples(comparison, letters)} == {"good"}
    drafting = ["".join(svg.itertext()) for svg in shown.svgs[2:3]]
    assert not [text for text in drafting if PLAIN in text]


def test_numerics_are_told_with_the_reason_and_the_strategies_that_have_them() -> None:
    assert numerics_used(build({"a": 2.0})) == "Numerics: fast, not bit-exact: made up."
    assert numerics_used(build({})) == "Numerics: fast, not bit-exact: made up."
    mixed = build({"a": 2.0, "b": 1.0}, inexact={PLAIN: "one", "a": "one", "b": "another"})
    assert numerics_used(mixed) == "Numerics: fast, not bit-exact: one (a); fast, not bit-exact: another (b)."


def test_several_comparisons_are_told_apart_by_their_settings(page: Any) -> None:
    settings = [{"max_new_tokens": 8}, {"max_new_tokens": 8, "temperature": 0.7}]
    shown = page(*(build({"fast": 2.0}, settings=own) for own in settings))
    assert "<h2>temperature 0.0</h2>" in shown.text
    assert "<h2>temperature 0.7</h2>" in shown.text
    assert len(shown.svgs) == 10


@pytest.mark.parametrize("decode", [None, letters, lambda ids: "</pre><script>alert(1)</script>" * len(ids)])
def test_hostile_names_and_texts_are_text(page: Any, decode: Any) -> None:
    categories = ["<script>alert(2)</script>", "$\\sum"]
    comparison = build(HOSTILE, categories=categories, wrong=list(HOSTILE), settings={"stop": "<img src=y>"})
    shown = page(comparison, decode=decode, costs=COSTS)
    assert not {"script", "img", "iframe", "link", "object"} & set(shown.tags)
    assert not [name for name, _ in shown.attributes if name.startswith("on")]
    assert "49" not in "".join(row[0] for row in shown.rows)
    assert len(shown.svgs) == len(FIGURES)
    in_figures = "".join("".join(svg.itertext()) for svg in shown.svgs)
    for name in ("<script>alert(1)</script>", r"$\frac{1}{$", "_hidden"):
        assert name in in_figures
        assert name in "".join(row[0] for row in shown.rows)


def test_nothing_is_fetched_from_anywhere(page: Any) -> None:
    shown = page(build(EIGHT), costs=COSTS)
    links = [value for name, value in shown.attributes if name.split(":")[-1] in ("src", "href", "data", "action")]
    assert links
    assert all(link.startswith("#") for link in links)
    assert "@import" not in shown.text
    assert set(re.findall(r"url\((.)", shown.text)) <= {"#"}


def test_ids_are_unique_in_the_page_and_every_reference_is_to_its_own_figure(page: Any) -> None:
    shown = page(build(EIGHT), build(EIGHT, settings={"temperature": 1.0}), costs=COSTS)
    ids = [value for name, value in shown.attributes if name == "id"]
    assert len(ids) == len(set(ids)) > 0
    for svg in shown.svgs:
        own = {element.get("id") for element in svg.iter()}
        text = ElementTree.tostring(svg, encoding="unicode")
        assert set(re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', text)) <= {(i, "") for i in own} | {
            ("", i) for i in own
        }


def test_the_report_is_the_same_each_time_and_leaves_matplotlib_as_it_was(page: Any) -> None:
    comparison = build(HOSTILE)
    before = page(comparison, costs=COSTS).text
    with matplotlib.rc_context({"font.size": 31.0, "axes.facecolor": "red"}):
        settings = dict(matplotlib.rcParams)
        assert page(comparison, costs=COSTS).text == before
        assert dict(matplotlib.rcParams) == settings


@pytest.mark.parametrize(
    "comparison",
    [
        build({}),
        build({"fast": 2.0}, num_prompts=1, lengths=[5], categories=["code"]),
        build({"fast": 2.0}, lengths=[1]),
        build({"fast": 2.0}, lengths=[40, 1, 1, 9]),
        build({"": 2.0}),
        build(EIGHT, num_prompts=13, categories=[f"category {index}" for index in range(13)]),
    ],
    ids=["plain decoding alone", "one prompt, one step", "one token", "long drafts", "no name", "much of everything"],
)
def test_every_shape_renders(page: Any, comparison: Comparison) -> None:
    assert len(page(comparison, decode=None, costs=COSTS).svgs) == len(FIGURES)
    assert len(page(comparison, decode=letters).svgs) == len(FIGURES) - 1


def test_a_samples_pieces_are_its_text_and_a_split_character_is_whole() -> None:
    tokenizer = byte_tokenizer.trained()
    prompt, new = (tuple(tokenizer.encode(text)) for text in ("naïve ", "café 東京 👩‍👩‍👧 über 你"))
    assert max(new) < 340
    halves = [1, 2] * (len(new) // 3) + [1] * (len(new) % 3)
    run: dict[str, Any] = {"prompt": 0, "repeat": 0, "seconds": 1.0, "tokens": new, "num_nodes": 9, "cache_bytes": 1}
    run["phases"] = dict.fromkeys(PHASES, 0.0)
    plan = build({"fast": 2.0}, prompts=(("prose", "split", prompt),), num_prompts=1).plan
    steps = {PLAIN: (1,) * len(new), "fast": tuple(halves)}
    comparison = Comparison(plan, [Run(strategy=name, accepted_lengths=own, **run) for name, own in steps.items()])
    (sample,) = samples(comparison, tokenizer.decode)
    assert sample.prompt == "naïve "
    assert "".join(piece.text for piece in sample.pieces) == tokenizer.decode(list(new))
    assert not [piece for piece in sample.pieces if "�" in piece.text]
    assert [piece.num_tokens for piece in sample.pieces] == halves
    shades = [piece.shade for piece in sample.pieces if piece.num_tokens > 1]
    assert shades == (["odd", "even"] * len(shades))[: len(shades)]
    assert {piece.shade for piece in sample.pieces if piece.num_tokens == 1} == {""}


def test_there_is_a_sample_of_each_category_by_the_fastest_strategy_that_drafts() -> None:
    found = samples(build({"slow": 0.3, "fast": 0.5}), letters)
    assert [(sample.category, sample.name, sample.strategy) for sample in found] == [
        ("code", "prompt 0", "fast"),
        ("prose", "prompt 1", "fast"),
    ]
    assert [piece.text for piece in found[0].pieces] == ["abc", "d", "efgh"]


def test_a_tokenizer_that_rewrites_spaces_still_gives_every_step_its_tokens() -> None:
    (sample, _) = samples(build({"fast": 2.0}), lambda ids: " ".join(map(str, ids)) + f" ({len(ids)})")
    assert [piece.text for piece in sample.pieces] == ["0 1 2 (3)", "3 (1)", "4 5 6 7 (4)"]


def test_what_cannot_be_reported_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    comparison = build({"fast": 2.0})
    with pytest.raises(RequestError, match="there is no comparison"):
        write_report(tmp_path / "report.html", [], None)
    with pytest.raises(RequestError, match=r"report .*nowhere"):
        write_report(tmp_path / "nowhere" / "report.html", [comparison], None)
    for module in ("jinja2", "matplotlib"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            with pytest.raises(RequestError, match=f"{module}: pip install"):
                write_report(tmp_path / "report.html", [comparison], None)


@pytest.mark.parametrize("num_prompts", [1, 8])
def test_the_line_at_plain_decodings_speed_crosses_no_text(num_prompts: int) -> None:
    comparison = build({"slow": 0.79, "fast": 1.3, "a_name_of_thirty:letters=on,its=first_line": 1.05}, num_prompts)
    with look():
        figure, _ = speed_ups(comparison, styles_of([comparison]))
    (axes,) = figure.axes
    lines, texts = ([each.get_window_extent() for each in drawn] for drawn in (axes.lines, axes.texts))
    assert len(lines) >= len(texts) > 0
    assert not [text for text in texts if text.count_overlaps(lines)]
