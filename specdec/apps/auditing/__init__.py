"""Audits: does a strategy's text equal plain decoding's, and if not, is the cause rounding or a defect?"""

from specdec.apps.auditing.audit import audit
from specdec.apps.auditing.findings import Audit, Finding

__all__ = ["Audit", "Finding", "audit"]
