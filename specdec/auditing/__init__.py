"""Does a strategy write what plain decoding writes, and where it doesn't: rounding, or a defect?"""

from specdec.auditing.audit import audit
from specdec.auditing.findings import Audit, Finding

__all__ = ["Audit", "Finding", "audit"]
