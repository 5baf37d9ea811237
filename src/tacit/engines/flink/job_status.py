"""The status of a job: what it has released, in a file that the job writes and drivers read.

The file also has the counts of tuples, which depend on private events: it is for the operator only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tacit.engines.flink.private_files import replace_file
from tacit.errors import StateError


@dataclass(frozen=True)
class JobStatus:
    """What a job has done since it was first started."""

    windows: int = 0
    """Windows that are in the ledger."""
    answers: int = 0
    until: int | None = None
    """The end of the last window that was released, in microseconds."""
    released_at: float | None = None
    """When it was released, in seconds since 1970."""
    exhausted: int = 0
    """Subjects that did not pay in the last released window."""
    charged: Mapping[str, int] = field(default_factory=dict)
    """The charges since the releasing process started, by private pattern, in nano-epsilon."""
    undelivered: int = 0
    """Releases that not every sink has yet."""
    retries: int = 0
    """Deliveries that were retried since the releasing process started."""
    taken: int = 0
    """Tuples accepted; for the operator only."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Tuples refused, by reason; for the operator only."""
    finished: bool = False
    """Whether the input has ended, and everything is released and delivered."""

    def write(self, path: Path) -> None:
        """Write it to a file, in one step."""
        replace_file(path, json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> JobStatus:
        """Read what `write` wrote; an empty status if there is no file."""
        try:
            return cls(**json.loads(path.read_text("utf-8")))
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, TypeError) as error:
            raise StateError(f"the status of the job in {path} cannot be read") from error
