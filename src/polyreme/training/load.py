"""Reads initial weights in a worker: of each tensor only what the worker holds, one tensor at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from polyreme.layout.layers import Parameter
from polyreme.layout.owners import Shard
from polyreme.models.build import Fill
from polyreme.specs.job import JobSpec
from polyreme.specs.model import ModelSpec
from polyreme.training.initial_weights import StoredTensor, stored_parameters


@dataclass(frozen=True, slots=True)
class InitialWeights:
    """A `Fill` from files. Values are converted to the dtype of the parameter."""

    stored: Mapping[str, StoredTensor]

    def __call__(self, parameter: Tensor, whole: Parameter, parts: Sequence[Shard]) -> None:
        """Read the held parts. The file is opened anew for each parameter: closing it gives its pages back."""
        place = self.stored[whole.name]
        with safe_open(place.file, framework="pt") as file, torch.no_grad():
            values = file.get_slice(place.name)
            first, dim = 0, whole.tp_dim or 0
            for part in parts:
                rows = slice(part.start, part.stop)
                held = values[rows] if dim == 0 else values[:, rows]
                parameter.narrow(dim, first, part.stop - part.start).copy_(held)
                first += part.stop - part.start


def initial_fill(job: JobSpec, base: Path, model: ModelSpec) -> Fill | None:
    """What fills the weights of a job whose paths are relative to `base`; None if they are drawn by its seed."""
    if job.initial_weights is None:
        return None
    return InitialWeights(stored_parameters(base / job.initial_weights, model))
