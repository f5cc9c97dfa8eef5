"""Options of a command for images and recordings that go with the prompt."""

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from specdec.apps.cli.option_groups import OptionGroup


@dataclass(frozen=True, slots=True)
class MediaOptions(OptionGroup):
    """Files that go into the message before its text."""

    image: Annotated[list[str] | None, typer.Option(help="an image for the model; may be repeated")] = None
    audio: Annotated[list[str] | None, typer.Option(help="a WAV recording for the model; may be repeated")] = None

    def parts(self) -> tuple[dict[str, Any], ...]:
        """Return the files as parts of a chat message; raises RequestError for one that can't be read."""
        from specdec.apps.chat.attachments import attachments

        return attachments(self.image or (), self.audio or ())


NO_MEDIA = MediaOptions()
