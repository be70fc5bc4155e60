"""Torch dtypes of the precisions that this runtime trains in."""

import torch

from polyreme.specs.fields import Precision

DTYPES = {Precision.FP32: torch.float32, Precision.FP64: torch.float64}
