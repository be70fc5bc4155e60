"""The list scheduler: gives every worker something useful to do at every moment, within a limit on what it holds.

Graham's list scheduling (SIAM J. Appl. Math. 17, 1969) over the dependencies of a pipeline. A worker that is free takes
the backward that is ready, else the forward that is ready while it holds less than its cap, else a weight gradient that
waits (the order of Qi et al., arXiv 2401.10241, section 3.1). Nothing begins whose message the receiver has no posted
receive for. Since an order is what such a run did, it cannot deadlock, even where sends wait for their receive.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from polyreme.schedules.action import RECEIVES_POSTED, Op
from polyreme.specs.plan import StageTime

Work = tuple[Op, int, int]
"""(compute op, stage, microbatch)."""


@dataclass(slots=True)
class _Worker:
    """One place of the pipeline: its stages, what it may still hold, and the weight gradients that wait."""

    stages: tuple[int, ...]
    cap: int
    free_s: float = 0.0
    held: int = 0
    order: list[Work] = field(default_factory=list)
    waiting: list[tuple[int, int]] = field(default_factory=list)


class GreedyRun:
    """One simulated step. `split` lets the weight gradient of a microbatch run later than its input gradient."""

    def __init__(
        self,
        places: Sequence[tuple[int, ...]],
        times: Sequence[StageTime],
        num_microbatches: int,
        caps: Sequence[int],
        *,
        split: bool,
    ) -> None:
        self.times, self.num_microbatches, self.split = times, num_microbatches, split
        self.workers = [_Worker(stages, cap) for stages, cap in zip(places, caps, strict=True)]
        self.place_of = {stage: number for number, stages in enumerate(places) for stage in stages}
        self.last = len(times) - 1
        self.forward_s: list[list[float]] = [[] for _ in times]
        self.backward_s: list[list[float]] = [[] for _ in times]
        """When the forwards and backwards begun so far end, per stage."""
        self.events = [(0.0, number) for number in range(len(places))]

    def orders(self) -> list[list[Work]]:
        """What each worker computed, in order."""
        left = sum(len(worker.stages) for worker in self.workers) * self.num_microbatches
        while True:
            while self.events:
                now, number = heapq.heappop(self.events)
                if now >= self.workers[number].free_s:
                    self._take(now, number)
            if sum(map(len, self.backward_s)) == left:
                break
            self._widen()
        for worker in self.workers:
            worker.order += [(Op.WEIGHT_GRADIENT, *one) for one in worker.waiting]
        return [worker.order for worker in self.workers]

    def _take(self, now: float, number: int) -> None:
        """Let a free worker begin what is best now, or wake it when something that it knows of becomes ready."""
        worker = self.workers[number]
        soonest = float("inf")
        for choose in (self._backward_ready_s, self._forward_ready_s):
            for stage in reversed(worker.stages):
                ready_s = choose(worker, stage)
                if ready_s <= now:
                    self._begin(now, number, stage, backward=choose == self._backward_ready_s)
                    return
                soonest = min(soonest, ready_s)
        if worker.waiting:
            stage, microbatch = worker.waiting.pop(0)
            worker.held -= 1
            self._finish(now + self.times[stage].w, number, (Op.WEIGHT_GRADIENT, stage, microbatch))
        elif soonest < float("inf"):
            heapq.heappush(self.events, (soonest, number))

    def _backward_ready_s(self, _: _Worker, stage: int) -> float:
        microbatch = len(self.backward_s[stage])
        source = self.forward_s[stage] if stage == self.last else self.backward_s[stage + 1]
        if microbatch < min(len(source), len(self.forward_s[stage])) and self._may_send(stage, stage - 1):
            return source[microbatch]
        return float("inf")

    def _forward_ready_s(self, worker: _Worker, stage: int) -> float:
        """When the next forward of a stage can begin; later stages of the worker keep one place each for themselves."""
        microbatch = len(self.forward_s[stage])
        behind = len(worker.stages) - 1 - worker.stages.index(stage)
        if microbatch >= self.num_microbatches or worker.held >= worker.cap - behind:
            return float("inf")
        if not self._may_send(stage, stage + 1):
            return float("inf")
        if stage == 0:
            return 0.0
        source = self.forward_s[stage - 1]
        return source[microbatch] if microbatch < len(source) else float("inf")

    def _may_send(self, stage: int, neighbour: int) -> bool:
        """Whether a message to the neighbouring stage would find a posted receive; none is needed inside a worker."""
        if self.place_of.get(neighbour, self.place_of[stage]) == self.place_of[stage]:
            return True
        begun = self.forward_s if neighbour > stage else self.backward_s
        return len(begun[stage]) < len(begun[neighbour]) + RECEIVES_POSTED

    def _begin(self, now: float, number: int, stage: int, *, backward: bool) -> None:
        worker, time = self.workers[number], self.times[stage]
        finished, neighbour = (self.backward_s, stage - 1) if backward else (self.forward_s, stage + 1)
        microbatch = len(finished[stage])
        if not backward:
            op, stop = Op.FORWARD, now + time.f
            worker.held += 1
        elif self.split:
            op, stop = Op.INPUT_GRADIENT, now + time.i
            worker.waiting.append((stage, microbatch))
        else:
            op, stop = Op.BACKWARD, now + time.backward_s
            worker.held -= 1
        finished[stage].append(stop)
        self._finish(stop, number, (op, stage, microbatch))
        for at_s, other in ((stop, self.place_of.get(neighbour)), (now, self.place_of.get(2 * stage - neighbour))):
            if other is not None and other != number:
                heapq.heappush(self.events, (max(at_s, self.workers[other].free_s), other))

    def _finish(self, stop: float, number: int, work: Work) -> None:
        self.workers[number].free_s = stop
        self.workers[number].order.append(work)
        heapq.heappush(self.events, (stop, number))

    def _widen(self) -> None:
        """No worker can go on within its cap: let those that hold as much as they may hold one more."""
        now = max(worker.free_s for worker in self.workers)
        for number, worker in enumerate(self.workers):
            worker.cap += 1
            heapq.heappush(self.events, (now, number))
