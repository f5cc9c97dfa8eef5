"""Image files as pictures, whose sizes are checked before they are decoded."""

import io
from dataclasses import dataclass
from typing import Any

from specdec.errors import RequestError, in_one_line
from specdec.inputs.limits import MOST_PIXELS

_FORMATS = "PNG", "JPEG", "WEBP", "GIF", "BMP"  # Pillow decodes others by programs or large libraries


@dataclass(slots=True)
class Pictures:
    """The pictures of one conversation, of which a small file may hold many pixels.

    Attributes:
        num_pixels: of those that were read.
    """

    num_pixels: int = 0

    def read(self, content: bytes) -> Any:
        """Return an image file's picture, upright and in RGB, as transformers reads files.

        Raises:
            RequestError: for a file that is damaged or of an unknown kind, or too many pixels; without Pillow.
        """
        try:
            from PIL import Image, ImageOps
        except ImportError as error:
            raise RequestError("images need Pillow: pip install pillow") from error
        try:
            image = Image.open(io.BytesIO(content), formats=_FORMATS)
            self._count(image.width, image.height)
            return ImageOps.exif_transpose(image).convert("RGB")
        except RequestError:
            raise
        except Exception as error:  # damaged files raise errors of any kind
            kinds = f"{', '.join(_FORMATS[:-1])} or {_FORMATS[-1]}"
            raise RequestError(f"an image can't be read as {kinds}: {_reason(error)}") from error

    def _count(self, width: int, height: int) -> None:
        self.num_pixels += width * height
        if self.num_pixels > MOST_PIXELS:
            raise RequestError(
                f"an image has {width} x {height} pixels, and those of a conversation may have "
                f"{MOST_PIXELS // 10**6} million together: give smaller ones"
            )


def _reason(error: Exception) -> str:
    """Return why, without the memory address of the file."""
    from PIL import UnidentifiedImageError

    return "it is none of these" if isinstance(error, UnidentifiedImageError) else in_one_line(error)
