"""What binds a plan, as sentences: the stage that sets the pace, tight memory, bubble, waiting for messages."""

from polyreme.costs.model import CostModel
from polyreme.planner.space import describe, make_groups
from polyreme.schedules.action import RECV_OPS
from polyreme.simulator.simulate import Simulation, simulate
from polyreme.specs.job import JobSpec
from polyreme.specs.plan import Plan
from polyreme.specs.report import WorkerReport
from polyreme.units import format_bytes, format_percent, format_time_s

TIGHT = 0.9
"""Share of the limit above which memory is called tight."""


def explain(plan: Plan, costs: CostModel, job: JobSpec) -> list[str]:
    """Sentences about `plan`, the most important first."""
    simulation = simulate(plan, costs, job.limits.memory_fraction)
    workers = simulation.report.workers
    slowest = max(workers, key=lambda worker: worker.microbatch_time_s.f + worker.microbatch_time_s.backward_s)
    lines = [_pace(plan, simulation, slowest), *_memory(workers), *_idle(plan, simulation, workers)]
    used = {worker.worker for worker in workers}
    groups, left_out = make_groups(costs, job.limits.memory_fraction)
    unused = [device for group in groups for device in group.devices if device.name not in used]
    if unused:
        lines.append(f"Unused: {describe(unused)}; with them the best plan found is not faster for this objective.")
    lines += [f"Cannot take part: {one.num_devices} x {one.kind}: {one.reason}." for one in left_out]
    return lines


def _pace(plan: Plan, simulation: Simulation, slowest: WorkerReport) -> str:
    time = slowest.microbatch_time_s.f + slowest.microbatch_time_s.backward_s
    share = plan.pipelines[0].microbatches * time / simulation.report.step_time_s[1]
    return (
        f"Pace: stage {slowest.rank} ({slowest.worker}, {slowest.device}) takes {format_time_s(time)} a microbatch, "
        f"the most; its work is {format_percent(share)} of the step."
    )


def _memory(workers: tuple[WorkerReport, ...]) -> list[str]:
    used = {worker.rank: sum(worker.memory_bytes.values()) for worker in workers}
    tight = [worker for worker in workers if used[worker.rank] > TIGHT * worker.memory_limit_bytes]
    if not tight:
        worker = max(workers, key=lambda one: used[one.rank] / one.memory_limit_bytes)
        share = format_percent(used[worker.rank] / worker.memory_limit_bytes)
        return [f"Memory: not binding; the fullest device is {worker.worker} at {share} of its limit."]
    lines = []
    for worker in tight:
        part, size = max(worker.memory_bytes.items(), key=lambda item: item[1])
        lines.append(
            f"Memory: {worker.worker} holds {format_bytes(used[worker.rank])} of "
            f"{format_bytes(worker.memory_limit_bytes)}, most of it {part.replace('_', ' ')} ({format_bytes(size)})."
        )
    return lines


def _idle(plan: Plan, simulation: Simulation, workers: tuple[WorkerReport, ...]) -> list[str]:
    report = simulation.report
    fill = 1 - plan.pipelines[0].microbatches / (plan.pipelines[0].microbatches + len(workers) - 1)
    idlest = max(workers, key=lambda worker: worker.bubble_fraction)
    waited = {
        rank: sum(timed.stop_s - timed.start_s for timed in spans if timed.action.op in RECV_OPS)
        for rank, spans in simulation.timeline.items()
    }
    return [
        f"Bubble: {format_percent(report.bubble_fraction)} on average; equal stages would have {format_percent(fill)} "
        f"from filling and draining. The idlest worker is {idlest.worker} at {format_percent(idlest.bubble_fraction)}, "
        f"{format_time_s(waited[idlest.rank])} of it waiting for messages."
    ]
