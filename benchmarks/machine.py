"""The facts that belong beside every figure."""

from specdec.machine.facts import machine_facts


def facts() -> str:
    """Processor, cores, threads in use and versions, in one line."""
    return ", ".join(machine_facts().values())
