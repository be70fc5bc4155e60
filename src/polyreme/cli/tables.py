"""Terminal tables of plans and their alternatives."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from polyreme.planner.assemble import Candidate
from polyreme.planner.baselines import Baseline
from polyreme.planner.space import LeftOut
from polyreme.specs.report import Report
from polyreme.units import format_bytes, format_percent, format_time_s

WIDTH = 100


def console() -> Console:
    """Standard output: as wide as the terminal, 100 columns where there is none."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=WIDTH)


def stage_table(report: Report) -> Table:
    """One row per worker: stage, device, layers, times, memory, bubble."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("stage", "worker", "device", "layers", "forward", "backward", "memory", "bubble"):
        table.add_column(name, justify="left" if name in ("worker", "device") else "right", no_wrap=True)
    for worker in report.workers:
        start, stop = worker.layers
        used = sum(worker.memory_bytes.values())
        table.add_row(
            str(worker.rank),
            worker.worker,
            worker.device,
            f"{start}-{stop - 1}",
            format_time_s(worker.microbatch_time_s.f),
            format_time_s(worker.microbatch_time_s.backward_s),
            f"{format_bytes(used)} / {format_bytes(worker.memory_limit_bytes)}",
            format_percent(worker.bubble_fraction),
        )
    return table


def comparison_table(best: Candidate, devices: str, alternatives: Sequence[Baseline]) -> Table:
    """The plan beside its alternatives: step time, and how much slower each is."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("", "devices", "step time", "against plan", "cost per step"):
        table.add_column(name, justify="left" if name in ("", "devices") else "right")
    table.add_row("plan", devices, format_time_s(best.step_time_s), "1.00 x", _dollars(best))
    for one in alternatives:
        if one.candidate is None:
            table.add_row(one.name, one.devices, "-", "-", "-")
        else:
            ratio = one.candidate.step_time_s / best.step_time_s
            step = format_time_s(one.candidate.step_time_s)
            table.add_row(one.name, one.devices, step, f"{ratio:.2f} x", _dollars(one.candidate))
    return table


def interval_text(report: Report) -> str:
    """`9.8 s a step (9.1 s to 10.6 s)`."""
    low, middle, high = report.step_time_s
    return f"{format_time_s(middle)} a step ({format_time_s(low)} to {format_time_s(high)})"


def notes(alternatives: Sequence[Baseline], left_out: Sequence[LeftOut]) -> list[str]:
    """Why an alternative does not fit, and why devices were left out."""
    lines = [f"{one.name} does not fit: {one.problem}" for one in alternatives if one.candidate is None]
    return lines + [f"left out {one.num_devices} x {one.kind}: {one.reason}" for one in left_out]


def _dollars(candidate: Candidate) -> str:
    cost = candidate.simulation.report.cost_per_step_usd
    return "-" if cost is None else f"${cost:.4g}"
