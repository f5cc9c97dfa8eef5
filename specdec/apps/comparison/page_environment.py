"""The jinja2 environment of pages: reports and traces."""

from typing import Any

from specdec.errors import plural
from specdec.machine.extras import needs


def page_environment(package: str) -> Any:
    """A jinja2 environment for the HTML templates in a package: it escapes everything, and undefined names raise.

    Templates may include ``page.css``, the style of all reports.

    Raises:
        RequestError: jinja2 isn't installed.
    """
    jinja = needs("jinja2", "compare", "a page")
    environment = jinja.Environment(
        loader=jinja.ChoiceLoader([jinja.PackageLoader(name, ".") for name in (package, "specdec.apps.comparison")]),
        autoescape=True,
        undefined=jinja.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["plural"] = plural
    return environment
