"""Decoding by several processes: each has a shard of the model's tensors, or a share of each draft tree."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specdec.distributed.process_group import group

__all__ = ["group"]

if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> Any:
        """Import ``group`` at first use: torch's distributed tensors take half a second."""
        if name == "group":
            from specdec.distributed.process_group import group

            return group
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
