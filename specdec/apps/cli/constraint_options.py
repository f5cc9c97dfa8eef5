"""Options of a command for a constraint on the text."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specdec.apps.cli.option_groups import OptionGroup
from specdec.errors import RequestError

if TYPE_CHECKING:
    from specdec.constraints.base import Constraint


@dataclass(frozen=True, slots=True)
class ConstraintOptions(OptionGroup):
    """A constraint on the text, in one of several forms."""

    json_schema: Annotated[Path | None, typer.Option(help="write JSON that is valid under the schema in this file")] = (
        None
    )
    regex: Annotated[str | None, typer.Option(help="write text that matches this regular expression")] = None
    choices: Annotated[list[str] | None, typer.Option("--choice", help="write one of these texts; may be repeated")] = (
        None
    )

    def constraint(self) -> "Constraint | None":
        """Return the constraint, if one was given.

        Raises:
            RequestError: for several forms, a file that can't be read, or a constraint that can't be enforced.
        """
        given = {"--json-schema": self.json_schema, "--regex": self.regex, "--choice": self.choices or None}
        chosen = [name for name, value in given.items() if value is not None]
        if len(chosen) > 1:
            raise RequestError(f"{' and '.join(chosen)} were given: choose one")
        if not chosen:
            return None
        from specdec.constraints import Choice, JsonSchema, Regex

        if self.regex is not None:
            return Regex(self.regex)
        if self.json_schema is None:
            return Choice(self.choices or ())
        try:
            return JsonSchema(self.json_schema.read_text(encoding="utf-8-sig"))
        except OSError as error:
            raise RequestError(f"--json-schema {self.json_schema} can't be read: {error.strerror}") from error
        except UnicodeError as error:
            raise RequestError(f"--json-schema {self.json_schema} is not UTF-8 text: convert it first") from error


UNCONSTRAINED = ConstraintOptions()
