"""Audits: does a strategy's text equal plain decoding's, and if not, is the cause rounding or a defect?"""

from specdec.auditing.audit import audit
from specdec.auditing.findings import Audit, Finding

__all__ = ["Audit", "Finding", "audit"]
