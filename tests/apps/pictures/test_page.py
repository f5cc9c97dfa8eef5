"""The page of a trace: complete, escaped, and sufficient to itself."""

from html.parser import HTMLParser
from pathlib import Path

import pytest

from specdec import RequestError, ToyModel
from specdec.apps.pictures.page import save_page
from specdec.apps.pictures.trace import Recorder, Trace
from tests.support.byte_tokenizer import trained


class _Reader(HTMLParser):
    """Elements with their classes and attributes, and the text of those of a class."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []  # (class of the innermost element, text)
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self._open.append(dict(attrs).get("class") or tag)

    def handle_endtag(self, tag: str) -> None:
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts.append((self._open[-1], data))

    def of(self, name: str) -> list[str]:
        return [text for kind, text in self.texts if kind == name]


def read(trace: Trace, path: Path) -> _Reader:
    save_page(trace, path)
    reader = _Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader


@pytest.fixture(scope="module", name="trace")
def _trace() -> Trace:
    tokenizer = trained()
    cycle = tokenizer("<the & cat>, ")["input_ids"]

    def law(context: tuple[int, ...]) -> list[float]:
        """The cycle goes round, whatever was said before."""
        weights = [1e-3] * len(tokenizer)
        weights[cycle[len(context) % len(cycle)]] = 1.0
        return weights

    recorder = Recorder(ToyModel(law, len(tokenizer)), tokenizer, "lookahead:N=3,W=3,G=3")
    return recorder.trace("<b>the & cat</b>", max_new_tokens=30, seed=2)


def test_every_step_is_there_with_its_tokens_and_text(trace: Trace, tmp_path: Path) -> None:
    reader = read(trace, tmp_path / "trace.html")
    assert [tag for tag, _ in reader.elements].count("section") == len(trace.steps) > 1
    assert "".join(reader.of("mark")) == trace.result.text
    accepted = sum(step.num_accepted for step in trace.steps)
    assert accepted > 0
    # Each accepted token is in the tree and among the committed; one more is in the legend, as for the others.
    assert len(reader.of("accepted")) == 2 * accepted + 1
    assert len(reader.of("bonus")) == trace.result.stats.num_tokens - accepted + 1
    num_nodes = sum(len(step.tree) - 1 - step.num_left_out for step in trace.steps)
    assert len(reader.of("rejected")) == num_nodes - accepted + 1
    assert reader.of("before")[0] == trace.prompt


def test_the_page_asks_for_nothing_else_and_runs_nothing(trace: Trace, tmp_path: Path) -> None:
    reader = read(trace, tmp_path / "trace.html")
    assert {tag for tag, _ in reader.elements}.isdisjoint({"script", "link", "img", "iframe", "b"})
    assert not {name for _, attributes in reader.elements for name in attributes} & {"src", "href", "onclick"}
    style = "".join(reader.of("style"))
    assert "url(" not in style
    assert "@import" not in style


def test_a_page_that_can_not_be_written_is_refused(trace: Trace, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"trace\.html can't be written: "):
        save_page(trace, tmp_path / "no" / "trace.html")
