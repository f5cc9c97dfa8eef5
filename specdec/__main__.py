"""``python -m specdec``."""

from specdec.cli import main

main()
