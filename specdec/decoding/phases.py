"""The phases of a step, by which its seconds are counted; apart from all else, as the command line needs no torch."""

PHASES = ("propose", "compile", "forward", "verify", "commit")
