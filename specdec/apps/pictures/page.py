"""A trace as a single HTML file, which works offline and on phones."""

from pathlib import Path

from specdec.apps.comparison.figures.axes import COLOURS
from specdec.apps.comparison.page_environment import page_environment
from specdec.apps.pictures.trace import Trace
from specdec.errors import RequestError
from specdec.machine.extras import needs


def check_page() -> None:
    """Check that a page can be made; called before decoding.

    Raises:
        RequestError: if jinja2 isn't installed.
    """
    needs("jinja2", "compare", "a page")


def save_page(trace: Trace, path: Path) -> None:
    """Write the trace as a page.

    Raises:
        RequestError: if jinja2 isn't installed, or the file can't be written.
    """
    environment = page_environment("specdec.apps.pictures")
    environment.filters["shown"] = repr
    page = environment.get_template("trace.html.j2").render(
        trace=trace, stats=trace.result.stats, letters=trace.letters, colours=COLOURS
    )
    try:
        path.write_text(page, encoding="utf-8", errors="replace")  # an argument's text may be half a character
    except OSError as error:
        raise RequestError(f"{path} can't be written: {error.strerror}") from error
