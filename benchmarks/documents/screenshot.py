"""Screenshots of web pages as small PNGs."""

import io
from pathlib import Path
from typing import Any


def save(browser: Any, path: Path, **texts: str) -> None:
    """Write what a browser shows to a PNG, with these text chunks."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    image, info = Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB"), PngInfo()
    for key, text in texts.items():
        info.add_text(key, text)
    image.save(path, optimize=True, pnginfo=info)
    print(path)
