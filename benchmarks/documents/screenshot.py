"""Screenshots of web pages as small PNGs."""

import io
from pathlib import Path
from typing import Any

# Boxes that scroll are painted some frames after a change of size.
_IS_PAINTED = "setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(arguments[0])), 500)"


def save(browser: Any, path: Path, **texts: str) -> None:
    """Write what a browser shows to a PNG, with these text chunks."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    browser.execute_async_script(_IS_PAINTED)
    image, info = Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB"), PngInfo()
    for key, text in texts.items():
        info.add_text(key, text)
    image.save(path, optimize=True, pnginfo=info)
    print(path)
