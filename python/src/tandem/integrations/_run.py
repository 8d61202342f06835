"""Which run of a job this process is, and what an earlier run of it wrote."""

from __future__ import annotations

import json
import os
from pathlib import Path


def job_id() -> str | None:
    """The job that this process belongs to; None outside of Tandem."""
    return os.environ.get("TANDEM_JOB_ID") or None


def is_rerun() -> bool:
    """Whether an earlier run of this job was stopped, failed or lost."""
    try:
        run = int(os.environ.get("TANDEM_RUN", "1"))
    except ValueError:
        run = 1
    return job_id() is not None and run > 1


class Note:
    """A file that says which job wrote a checkpoint.

    Folders of checkpoints outlive jobs: without it, a new job would continue from the checkpoint of
    another one that happened to use the same folder.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    def write(self, **fields: object) -> None:
        """Notes that the files beside it are this job's."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._path.with_name(f"{self._path.name}.{os.getpid()}.new")
        draft.write_text(json.dumps({"job": job_id(), **fields}))
        os.replace(draft, self._path)

    def read(self) -> dict[str, object] | None:
        """The note of an earlier run of this job; None if there is none."""
        if not is_rerun():
            return None
        try:
            found = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) and found.get("job") == job_id() else None

    def written_at(self) -> float:
        return self._path.stat().st_mtime
