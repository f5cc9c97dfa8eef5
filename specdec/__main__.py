"""``python -m specdec``."""

from specdec.apps.cli import main

main()
