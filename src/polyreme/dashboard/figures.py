"""The figures that sum a run up, each prediction beside its measurement. Pure functions of a RunView.

All times are seconds, all sizes bytes; None where the run does not tell.
"""

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from polyreme.dashboard.run_folder import RunView
from polyreme.layout.instances import instances, stages_of
from polyreme.layout.layers import parameter_count
from polyreme.specs.report import WorkerReport


@dataclass(frozen=True, slots=True)
class Pair:
    """One quantity, predicted and measured."""

    predicted: float | None
    measured: float | None

    @property
    def error(self) -> float | None:
        """Measured over predicted, minus one; None unless both are known and the prediction is not 0."""
        if self.predicted is None or self.measured is None or self.predicted == 0:
            return None
        return self.measured / self.predicted - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFigures:
    """One stage of one running pipeline; times are of one microbatch. `layers` is half-open."""

    pipeline: str
    stage: int
    ranks: tuple[int, ...]
    device: str
    layers: tuple[int, int]
    forward_s: Pair
    backward_s: Pair


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFigures:
    """One worker. `stages` is its (pipeline, stage) pairs as text; memory is by part."""

    rank: int
    worker: str
    device: str
    stages: str
    layers: str
    bubble: Pair
    predicted_memory_bytes: Mapping[str, float]
    measured_memory_bytes: Mapping[str, float]
    memory_limit_bytes: float | None

    @property
    def memory_bytes(self) -> Pair:
        """Peak of all parts."""
        return Pair(sum(self.predicted_memory_bytes.values()) or None, sum(self.measured_memory_bytes.values()) or None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """A whole run. `step_time_interval_s` is the predicted (low, high); step times are medians without the first."""

    num_parameters: int | None
    num_steps: int
    planned_steps: int | None
    first_loss: float | None
    final_loss: float | None
    first_bad_loss_step: int | None
    step_time_s: Pair
    step_time_interval_s: tuple[float, float] | None
    tokens_per_s: Pair
    bubble: Pair
    stages: tuple[StageFigures, ...]
    workers: tuple[WorkerFigures, ...]


def figures(view: RunView) -> RunFigures:
    """All figures of a run."""
    losses = [line.loss for line in view.metrics]
    finite = [loss for loss in losses if math.isfinite(loss)]
    bad = next((line.step for line in view.metrics if not math.isfinite(line.loss)), None)
    predicted = view.prediction
    interval = predicted.step_time_s if predicted else view.plan.predicted.step_time_s if view.plan else None
    step_s = measured_step_time_s(view)
    tokens = _median(line.tokens for line in view.metrics)
    if not tokens and view.plan is not None:
        tokens = view.plan.batch.sequences * view.plan.batch.tokens_per_sequence
    return RunFigures(
        num_parameters=parameter_count(view.model) if view.model else None,
        num_steps=len(view.metrics),
        planned_steps=view.job.steps if view.job else None,
        first_loss=finite[0] if finite else None,
        final_loss=finite[-1] if finite else None,
        first_bad_loss_step=bad,
        step_time_s=Pair(interval[1] if interval else None, step_s),
        step_time_interval_s=(interval[0], interval[2]) if interval else None,
        tokens_per_s=Pair(
            predicted.tokens_per_s if predicted else None, tokens / step_s if tokens and step_s else None
        ),
        bubble=Pair(predicted.bubble_fraction if predicted else None, view.measured.mean_bubble),
        stages=_stages(view),
        workers=_workers(view),
    )


def measured_step_time_s(view: RunView) -> float | None:
    """Median step time without the first step, from the metrics or else from the events."""
    times = [line.step_time_s for line in view.metrics if line.step_time_s > 0]
    times = times or [view.measured.step_times_s[step] for step in sorted(view.measured.step_times_s)]
    return _median(times[1:] or times)


def device_of(view: RunView, rank: int) -> str:
    """Device kind of a rank as the prediction calls it; empty if not known."""
    report = _worker_report(view, rank)
    return report.device if report else ""


def _stages(view: RunView) -> tuple[StageFigures, ...]:
    if view.plan is None:
        return ()
    found = []
    for position, instance in enumerate(instances(view.plan)):
        for index, stage in enumerate(instance.pipeline.stages):
            ranks = instance.ranks(index)
            measured = view.measured.stages.get((position, index))
            kinds = list(dict.fromkeys(kind for rank in ranks if (kind := device_of(view, rank))))
            found.append(
                StageFigures(
                    pipeline=instance.name,
                    stage=index,
                    ranks=ranks,
                    device=", ".join(kinds),
                    layers=stage.layers,
                    forward_s=Pair(stage.time_s.f, measured.forward_s if measured else None),
                    backward_s=Pair(stage.time_s.backward_s, measured.backward_s if measured else None),
                )
            )
    return tuple(found)


def _workers(view: RunView) -> tuple[WorkerFigures, ...]:
    if view.plan is None:
        return ()
    found = []
    for rank, worker in enumerate(view.plan.workers):
        report, memory = _worker_report(view, rank), view.memory.get(rank)
        held = [
            (instance, stage, instance.pipeline.stages[stage].layers) for instance, stage in stages_of(view.plan, rank)
        ]
        limit = memory.limit_bytes if memory and memory.limit_bytes else report.memory_limit_bytes if report else None
        found.append(
            WorkerFigures(
                rank=rank,
                worker=worker,
                device=device_of(view, rank),
                stages=", ".join(f"{instance.name}.{stage}" for instance, stage, _ in held),
                layers=", ".join(layer_range(layers) for _, _, layers in held),
                bubble=Pair(report.bubble_fraction if report else None, view.measured.bubble_share.get(rank)),
                predicted_memory_bytes=report.memory_bytes if report else {},
                measured_memory_bytes=memory.peak_bytes if memory else {},
                memory_limit_bytes=limit,
            )
        )
    return tuple(found)


def layer_range(layers: tuple[int, int]) -> str:
    """`3-5` for the half-open range (3, 6); `3` for one layer."""
    first, last = layers[0], layers[1] - 1
    return f"{first}-{last}" if last > first else f"{first}"


def _worker_report(view: RunView, rank: int) -> WorkerReport | None:
    reports = view.prediction.workers if view.prediction else ()
    if rank < len(reports) and reports[rank].rank == rank:
        return reports[rank]
    return next((report for report in reports if report.rank == rank), None)


def _median(values: Iterable[float]) -> float | None:
    known = list(values)
    return statistics.median(known) if known else None
