"""Audits: what ``specdec.apps.auditing`` exports."""

from specdec.apps.auditing import Audit, Finding, audit

__all__ = ["Audit", "Finding", "audit"]
