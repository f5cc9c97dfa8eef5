"""Tables of figures: every name and figure can be read, however long the names and however narrow the terminal."""

from io import StringIO

import pytest
from rich.console import Console
from rich.text import Text

from specdec.apps.cli.figures_table import FiguresTable, folded

LONG = "lookahead:N=5,W=15,G=15,pool_from_prompt=True+token_recycling:k=6,num_pairs=32768+suffix"
FIGURES = {"tokens/s": "104", "tokens/step": "1.52", "times plain [95 %]": "1.20 [1.10, 1.31]", "same text": "3 ties"}


def printed(table: FiguresTable, width: int) -> list[str]:
    out = StringIO()
    Console(file=out, width=width, highlight=False).print(table)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    return [line.rstrip() for line in lines]


def table(*names: str) -> FiguresTable:
    made = FiguresTable("strategy", *FIGURES)
    for name in names:
        made.add_row(name, *list(FIGURES.values())[:-1], Text(FIGURES["same text"], style="yellow"))
    return made


def test_short_names_stand_beside_their_figures() -> None:
    lines = printed(table("autoregressive", "日本語"), 80)
    assert [line.split("  ")[0] for line in lines] == ["strategy", "autoregressive", "日本語"]
    assert lines[1].split() == ["autoregressive", "104", "1.52", "1.20", "[1.10,", "1.31]", "3", "ties"]
    assert len({Text(line).cell_len for line in lines}) == 1


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_long_name_has_lines_of_its_own_and_figures_stay_in_columns(width: int) -> None:
    lines = printed(table("suffix", LONG), width)
    figures = [line for line in lines if line.startswith(" ")]
    assert len({len(line) for line in figures}) == 1
    assert [line.split()[0] for line in figures] == ["tokens/s", "104", "104"]
    assert "".join(line for line in lines if not line.startswith(" ")) == f"strategysuffix{LONG}"


@pytest.mark.parametrize("width", [24, 40])
@pytest.mark.parametrize("name", [LONG, "x" * 90, "/a/long/path/" * 6 + "corpus.index"])
def test_nothing_is_lost_in_a_narrow_terminal(width: int, name: str) -> None:
    text = "".join("".join(printed(table(name), width)).split())
    for part in (name, *FIGURES, *FIGURES.values()):
        assert "".join(part.split()) in text


def test_names_are_broken_after_separators() -> None:
    assert folded("lookahead:N=5,W=15+suffix", 14) == ["lookahead:N=5,", "W=15+suffix"]
    assert folded("a" * 5, 2) == ["aa", "aa", "a"]
    assert folded("", 10) == [""]
