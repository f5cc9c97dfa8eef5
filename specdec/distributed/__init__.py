"""Decoding by several processes, each with a part of the model or of the work."""

from specdec.distributed.group import group

__all__ = ["group"]
