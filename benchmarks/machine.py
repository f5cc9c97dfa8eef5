"""Where and when a measurement ran."""

import subprocess
from datetime import UTC, datetime
from pathlib import Path

from specdec.machine.facts import machine_facts


def facts() -> str:
    """Processor, cores, threads in use and versions, in one line."""
    return ", ".join(machine_facts().values())


def recorded() -> dict[str, str]:
    """The date, and the commit that is checked out; an empty commit outside of a repository."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return {"date": f"{datetime.now(UTC):%Y-%m-%d}", "commit": found.stdout.strip()}
