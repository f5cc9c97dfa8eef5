"""The screen of ``specdec demo`` as it was printed, put into ``docs/index.md``.

    python -m benchmarks demo_screen

The demo runs in a pseudo-terminal of 100 columns; what stands there at the end is the page's block between its markers.
A run on a busy machine is refused, as its figures say little. It needs pyte, of the extra ``dev``.
"""

import argparse
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pyte

from benchmarks.documents.first_screen import with_block

PAGE = Path(__file__).parents[2] / "docs" / "index.md"
BEGIN = "<!-- made by `python -m benchmarks demo_screen` -->\n"
WIDTH, HEIGHT = 100, 40
_BUSY = "busy with other programs"


def run(command: list[str], width: int = WIDTH, height: int = HEIGHT) -> tuple[int, str]:
    """A command's exit code, and the lines of a terminal after it ended, those that were scrolled off included."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(width), "LINES": str(height)}
    screen = pyte.HistoryScreen(width, height, history=10_000)
    stream = pyte.ByteStream(screen)
    with subprocess.Popen(command, stdout=follower, stderr=follower, env=environment) as process:
        os.close(follower)
        try:
            while written := os.read(leader, 65536):
                stream.feed(written)
        except OSError:  # the other end is closed
            pass
    os.close(leader)
    above = ["".join(line[column].data for column in range(width)) for line in screen.history.top]
    lines = [line.rstrip() for line in (*above, *screen.display)]
    return process.returncode, "\n".join(lines).strip("\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    code, shown = run([sys.executable, "-m", "specdec", "demo"])
    print(shown)
    if code:
        raise SystemExit(f"the demo ended with exit code {code}")
    if _BUSY in shown:
        raise SystemExit("the machine was busy: nothing was written")
    block = f"\n```console\n$ specdec demo\n{shown}\n```\n\n"
    PAGE.write_text(with_block(PAGE.read_text(encoding="utf-8"), block, BEGIN), encoding="utf-8")


if __name__ == "__main__":
    main()
