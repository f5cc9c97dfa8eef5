"""The base of the configurations of strategies, acceptance rules and constraints."""

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from specdec.errors import PluginError, SpecdecError, describe


class Configuration(BaseModel):
    """Frozen options; the constructor refuses unknown names and wrong values in one line.

    Attributes:
        error_class: the class of that error, whose cause is pydantic's.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    error_class: ClassVar[type[SpecdecError]] = PluginError

    def __init__(self, /, **options: Any) -> None:
        """Raises an ``error_class`` for unknown options and wrong values; ``model_validate`` does so too."""
        try:
            super().__init__(**options)
        except ValidationError as error:
            raise self.error_class(f"{type(self).__name__} refused: {describe(error, type(self))}") from error
