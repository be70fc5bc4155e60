"""What a launcher hands a worker, as plain JSON: where the run is, and what differs from its files."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from polyreme.runtime.addresses import Seat

NO_STEP = -1
"""What a worker that has begun no step yet says that it is at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """`num_cores` is what emulated speeds are scaled to; `fault` the text of a scripted fault for this run.

    `data_inventory` is what the launcher found of the data; a worker that finds something else refuses.
    `code_base` is where the code of a model of family blocks lies, None if no code may be run.
    """

    run_dir: str
    data_base: str
    rank: int = 0
    port: int = 0
    num_cores: int
    save_weights: bool = True
    fault: str | None = None
    data_inventory: str | None = None
    code_base: str | None = None
    seat: Seat = Seat()  # noqa: RUF009 - frozen

    @property
    def folder(self) -> Path:
        """The run folder."""
        return Path(self.run_dir)

    @classmethod
    def from_message(cls, content: bytes) -> "WorkerSettings":
        """The settings that a launcher sent."""
        fields = json.loads(content)
        seat = fields.pop("seat")
        return cls(**fields, seat=Seat(**{**seat, "groups": tuple(seat["groups"])}))

    def to_message(self) -> dict[str, Any]:
        """Plain data; the launcher adds rank and port."""
        return asdict(self)
