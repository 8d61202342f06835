"""Tandem from Python: `Job` inside a training script, `Client` around one.

Only the standard library is needed.
"""

from tandem._client import Client, TandemError, Unreachable
from tandem._job import Job

__all__ = ["Client", "Job", "TandemError", "Unreachable"]
__version__ = "0.1.0"
