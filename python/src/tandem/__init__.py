"""Tandem from Python: `Job` inside a training script, `Client` around one, `compare` for traces.

Only the standard library is needed. Adapters for frameworks are in `tandem.integrations`.
"""

from tandem._api import TandemError, Unreachable, Untrusted
from tandem._async_client import AsyncClient
from tandem._client import Client
from tandem._job import Job
from tandem._service import Service
from tandem._simulate import compare, simulate

__all__ = [
    "AsyncClient",
    "Client",
    "Job",
    "Service",
    "TandemError",
    "Unreachable",
    "Untrusted",
    "compare",
    "simulate",
]
__version__ = "0.1.0"
