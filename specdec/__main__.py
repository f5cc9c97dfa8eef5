"""``python -m specdec``."""

from specdec.apps.cli.command_line import main

main()
