"""Seconds of forward, backward and update of each layer kind on this processor, one thread, as CPU time.

An emulated kind takes the CPU time divided by its core fraction, and idles after each action; a processor that wakes up
is slower at first, so its layers are timed after a pause. Sizes are measured in turn, round after round, so that a busy
moment of the machine spreads over all of them.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from polyreme.adapters.torch_stage import TorchStage
from polyreme.drivers.base import MemoryLedger
from polyreme.layout.layers import layer_kind, num_layers
from polyreme.models.build import StageLayers
from polyreme.models.dtypes import DTYPES
from polyreme.models.foreign import ForeignLayers, MakeBlocks
from polyreme.models.layer_range import LayerRange
from polyreme.models.optimizer import Updater
from polyreme.specs.fields import LayerKind, Precision
from polyreme.specs.job import AdamW
from polyreme.specs.model import ModelSpec
from polyreme.specs.profile import LayerTiming, Spread

WARM_UP_ROUNDS = 2
MIN_ROUNDS = 5


@dataclass(slots=True)
class _Case:
    """One layer kind at one microbatch size, and the seconds it took so far."""

    kind: LayerKind
    sequences: int
    stage: TorchStage
    updater: Updater
    memory: MemoryLedger
    num_timed: int
    forward_s: list[float] = field(default_factory=list)
    backward_s: list[float] = field(default_factory=list)
    update_s: list[float] = field(default_factory=list)


def measure_layers(
    model: ModelSpec,
    precision: Precision,
    sizes: Sequence[int],
    tokens_per_sequence: int,
    core_fractions: Mapping[str, float],
    budget_s: float = 6.0,
    pause_s: float = 0.0,
    blocks_timed: int = 1,
    *,
    make_blocks: MakeBlocks | None = None,
) -> tuple[LayerTiming, ...]:
    """Timings of every layer kind at every microbatch size, for each device kind named in `core_fractions`.

    `pause_s` is slept before each forward and each backward of blocks, of which `blocks_timed` are timed together: as
    in a stage, they share what waking up costs, and compete for the cache.
    """
    torch.set_num_threads(1)
    cases = [_case(model, precision, kind, size, blocks_timed, make_blocks) for size in sizes for kind in LayerKind]
    started, rounds = time.perf_counter(), 0
    while rounds < WARM_UP_ROUNDS + MIN_ROUNDS or time.perf_counter() - started < budget_s:
        for case in cases:
            _time_once(case, model, tokens_per_sequence, pause_s, keep=rounds >= WARM_UP_ROUNDS)
        rounds += 1
    return tuple(
        LayerTiming(
            device=device,
            layer=case.kind,
            precision=precision,
            sequences=case.sequences,
            tokens_per_sequence=tokens_per_sequence,
            forward=_spread(case.forward_s, fraction),
            backward=_spread(case.backward_s, fraction),
            update=_spread(case.update_s, fraction),
            activation_bytes=case.memory.peak_bytes["activations"] // case.num_timed,
        )
        for device, fraction in core_fractions.items()
        for case in cases
    )


def _case(
    model: ModelSpec,
    precision: Precision,
    kind: LayerKind,
    sequences: int,
    blocks_timed: int,
    make_blocks: MakeBlocks | None,
) -> _Case:
    layers = {
        LayerKind.EMBEDDING: (0, 1),
        LayerKind.BLOCK: (1, 1 + min(blocks_timed, model.num_layers)),
        LayerKind.HEAD: (num_layers(model) - 1, num_layers(model)),
    }[kind]
    assert layer_kind(model, layers[0]) is kind
    memory = MemoryLedger("profile", float("inf"))
    dtype = DTYPES[precision]
    made: LayerRange = (
        StageLayers(model, *layers, seed=0, dtype=dtype)
        if make_blocks is None
        else ForeignLayers(model, *layers, seed=0, make_blocks=make_blocks, dtype=dtype)
    )
    stage = TorchStage(made, memory)
    return _Case(kind, sequences, stage, Updater(AdamW(), stage.state(), memory), memory, layers[1] - layers[0])


def _time_once(case: _Case, model: ModelSpec, num_tokens: int, pause_s: float, *, keep: bool) -> None:
    shape = (case.sequences, num_tokens)
    tokens = torch.randint(0, model.vocab_size, shape)
    hidden = torch.randn(*shape, model.hidden_size, dtype=case.stage.layers.dtype)
    value = tokens if case.kind is LayerKind.EMBEDDING else hidden
    labels = tokens if case.kind is LayerKind.HEAD else None
    pause_s = pause_s if case.kind is LayerKind.BLOCK else 0.0
    time.sleep(pause_s)
    times = [time.thread_time()]
    output = case.stage.forward(0, value, labels)
    times.append(time.thread_time())
    gradient = None if case.kind is LayerKind.HEAD else torch.ones_like(output)
    time.sleep(pause_s)
    start = time.thread_time()
    case.stage.backward(0, gradient)
    times += [start, time.thread_time()]
    case.updater.step(AdamW().learning_rate)
    times.append(time.thread_time())
    if keep:
        case.forward_s.append((times[1] - times[0]) / case.num_timed)
        case.backward_s.append((times[3] - times[2]) / case.num_timed)
        case.update_s.append((times[4] - times[3]) / case.num_timed)


def _spread(samples: Sequence[float], core_fraction: float) -> Spread:
    ordered = sorted(sample / core_fraction for sample in samples)
    last = len(ordered) - 1
    return Spread(
        median_s=ordered[last // 2],
        p10_s=ordered[last // 10],
        p90_s=ordered[last - last // 10],
        num_samples=len(ordered),
    )
