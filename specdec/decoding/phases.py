"""The phases of a step, by which its seconds are counted."""

PHASES = ("propose", "compile", "forward", "verify", "commit")
