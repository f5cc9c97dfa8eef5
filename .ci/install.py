"""Install packages by a virtual environment's pip, and show on one line what it is doing and for how long.

    python3 .ci/install.py .venv/bin/python "torch" --constraint constraints.txt torch

The second argument says what is installed; the others are pip's. It runs before anything is installed, so it imports
the standard library alone. Where pip fails, all of its output follows.
"""

import re
import shutil
import subprocess
import sys
import threading
import time

SECONDS_BETWEEN_PICTURES, SECONDS_BETWEEN_LINES = 0.25, 15.0
# pip's lines that say what comes next, such as "  Downloading https://…/torch-2.13.0-….whl (190.9 MB)"
DOING = re.compile(r"\s*(Collecting|Downloading|Processing|Building|Preparing|Installing)\s(.*)")


def doing(line: str) -> str:
    """What a line of pip's says it is doing, in a few words; "" for any other line."""
    found = DOING.match(line)
    if found is None:
        return ""
    verb, what = found.groups()
    if verb == "Installing":
        return "unpacking"
    if verb in {"Building", "Preparing"}:
        return f"{verb.lower()} {'metadata' if 'metadata' in what else 'wheels'}"
    size = re.search(r"\(([\d.]+ [kMG]B)\)", what)
    name = re.split(r"[^\w.]|-\d", what.split()[0].rpartition("/")[2])[0]
    return f"{verb.lower()} {name}{f', {size[1]}' if size else ''}"


def main() -> int:
    """Run pip; its exit code."""
    python, what, *arguments = sys.argv[1:]
    # Most modules are never imported: those that are, Python compiles then.
    command = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-compile", *arguments]
    started, lines, now = time.monotonic(), [], [""]
    is_terminal = sys.stdout.isatty()
    print(f"installing {what}", end="" if is_terminal else "\n", flush=True)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:

        def read() -> None:
            for line in pip.stdout:
                lines.append(line)
                now[0] = doing(line) or now[0]

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        while reader.is_alive():
            reader.join(SECONDS_BETWEEN_PICTURES if is_terminal else SECONDS_BETWEEN_LINES)
            seconds = time.monotonic() - started
            if is_terminal:
                text = f"installing {what}: {seconds:.0f} s, {now[0]}"
                print(f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}", end="", flush=True)
            elif reader.is_alive():
                print(f"  {seconds:.0f} s, {now[0]}", flush=True)
    start = "\r\x1b[K" if is_terminal else ""
    ending = "can't install" if pip.returncode else "installed"
    print(f"{start}{ending} {what}, {time.monotonic() - started:.0f} s")
    if pip.returncode:
        sys.stdout.writelines(lines)
    return pip.returncode


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # pip has had it, too
        print()
        sys.exit(130)
