"""Torch dtypes of the precisions that this runtime trains in."""

import torch

from polyreme.specs.fields import Precision

DTYPES = {
    Precision.FP64: torch.float64,
    Precision.FP32: torch.float32,
    Precision.BF16: torch.bfloat16,
    Precision.FP16: torch.float16,
}
