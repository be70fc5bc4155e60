"""How a spec is declared: the `spec` decorator, the checked field types, and the closed vocabularies of every file.

A spec is a frozen, slotted, keyword-only dataclass. Field types below carry the rule that `specs.io` enforces on
what a person wrote; cross-field rules sit in `__post_init__` and raise ValueError, so they also hold in code.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, TypeVar, dataclass_transform

from annotated_types import Ge, Gt, Le, Len
from pydantic import BeforeValidator, ConfigDict, Strict

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def spec(cls: type[T]) -> type[T]:
    """Make `cls` a frozen, slotted, keyword-only dataclass whose file form refuses unknown keys, inf and nan."""
    decorated: Any = dataclass(frozen=True, slots=True, kw_only=True)(cls)
    decorated.__pydantic_config__ = ConfigDict(
        extra="forbid", allow_inf_nan=False, populate_by_name=True, defer_build=True
    )
    return decorated  # type: ignore[no-any-return]


def _integral(value: Any) -> Any:
    """`1e9` in YAML is a float; where a whole number is meant, a whole float is one."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _check(rule: Callable[[Any], Any]) -> BeforeValidator:
    return BeforeValidator(rule)


Text = Annotated[str, Strict(), Len(1, 4096)]
Flag = Annotated[bool, Strict()]
PositiveInt = Annotated[int, Strict(), Gt(0), Le(10**15), _check(_integral)]
NonNegativeInt = Annotated[int, Strict(), Ge(0), Le(10**15), _check(_integral)]
PositiveFloat = Annotated[float, Strict(), Gt(0)]
NonNegativeFloat = Annotated[float, Strict(), Ge(0)]
Fraction = Annotated[float, Strict(), Gt(0), Le(1)]


class Precision(StrEnum):
    """Number format of weights and activations in compute."""

    FP64 = "fp64"
    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    FP4 = "fp4"
    INT8 = "int8"


PRECISION_BYTES = {
    Precision.FP64: 8.0,
    Precision.FP32: 4.0,
    Precision.TF32: 4.0,
    Precision.BF16: 2.0,
    Precision.FP16: 2.0,
    Precision.FP8: 1.0,
    Precision.FP4: 0.5,
    Precision.INT8: 1.0,
}
"""Bytes of one element of a tensor in a precision (tf32 is stored as fp32)."""


class Objective(StrEnum):
    """What a plan minimises: seconds, dollars or joules of one step."""

    TIME = "time"
    COST = "cost"
    ENERGY = "energy"


class LayerKind(StrEnum):
    """The kinds of layer a model is a sequence of."""

    EMBEDDING = "embedding"
    BLOCK = "block"
    HEAD = "head"


class ScheduleName(StrEnum):
    """Order in which a worker runs the forwards and backwards of its microbatches; `list`: made from stage times."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"
    ZB_H1 = "zb-h1"
    ZB_H2 = "zb-h2"
    ZB_V = "zb-v"
    LIST = "list"


class Recompute(StrEnum):
    """Which activations are dropped after forward and computed again in backward."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class Transport(StrEnum):
    """How messages cross a boundary: torch's point-to-point, shared memory of one node, or through host memory."""

    C10D = "c10d"
    SHM = "shm"
    STAGED = "staged"


class Feature(StrEnum):
    """What a plan can ask of a runtime beyond one pipeline of single-device stages."""

    UNEQUAL_PIPELINES = "unequal_pipelines"
    DATA_PARALLEL = "data_parallel"
    TENSOR_PARALLEL = "tensor_parallel"
    CONTEXT_PARALLEL = "context_parallel"
    EXPERT_PARALLEL = "expert_parallel"
    INTERLEAVED_STAGES = "interleaved_stages"
    UNEVEN_SHARE = "uneven_share"
    TIED_EMBEDDING = "tied_embedding"
    RECOMPUTE = "recompute"
    ZERO = "zero"
    OPTIMIZER_OFFLOAD = "optimizer_offload"
    MIXED_PRECISION = "mixed_precision"
    LIST_SCHEDULE = "list_schedule"
    TRANSPORT = "transport"
    FOREIGN_FRAMEWORK = "foreign_framework"
