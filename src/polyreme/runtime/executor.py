"""Walks one worker's action list: the same list that the simulator replays, action by action, in order."""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from polyreme.adapters.base import StageModule
from polyreme.drivers.base import DeviceDriver, Fence
from polyreme.runtime.faults import Fault
from polyreme.runtime.transports.base import Receiver, Sender
from polyreme.schedules.action import RECV_OPS, Action, Op
from polyreme.schedules.lower import forward_only
from polyreme.specs.events import OP_NUMBERS
from polyreme.telemetry.recorder import Recorder

Place = tuple[str, int]
"""(pipeline, stage)."""


class BatchSource(Protocol):
    """Where a worker takes its part of a step's data from; no data travels between workers."""

    def tokens(self, place: Place, microbatch: int) -> Tensor:
        """Token ids [sequences, tokens] of this worker's share of a microbatch."""
        ...

    def labels(self, place: Place, microbatch: int) -> Tensor:
        """Labels [sequences, tokens] of the same share."""
        ...


class Update(Protocol):
    """What follows the microbatches of a step."""

    def reduce(self, bucket: int) -> None:
        """Sum the gradients of a bucket over its owners."""
        ...

    def norm(self) -> None:
        """Take the norm of all gradients over all workers."""
        ...

    def step(self) -> None:
        """Update this worker's weights."""
        ...


Part = tuple[slice, slice]
"""Sequences and tokens of a stage's input or output that one message carries."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """What one worker is connected to: per boundary and direction the ends of its channels, and what each carries.

    `shapes` are those of a received input or gradient. `counts_loss` are the places whose loss this worker reports:
    tensor ranks all compute the same one.
    """

    stages: Mapping[Place, StageModule]
    senders: Mapping[tuple[Op, Place], Sequence[tuple[Sender, Part]]]
    receivers: Mapping[tuple[Op, Place], Sequence[tuple[Receiver, Part]]]
    shapes: Mapping[Place, torch.Size]
    dtype: torch.dtype
    torch_device: str
    pipeline_numbers: Mapping[str, int]
    first_places: frozenset[Place]
    last_places: frozenset[Place]
    counts_loss: frozenset[Place]


class Executor:
    """One worker's interpreter. `current` is the action under way, for whoever reports a failure."""

    def __init__(
        self,
        rank: int,
        actions: Sequence[Action],
        wiring: Wiring,
        driver: DeviceDriver,
        recorder: Recorder,
        update: Update,
        fault: Fault | None = None,
    ) -> None:
        self.rank, self.actions, self.wiring, self.driver, self.recorder = rank, actions, wiring, driver, recorder
        self.update, self.fault = update, fault
        self.evaluation = forward_only(actions)
        self.current: Action | None = None
        self.step = 0
        self._values: dict[tuple[Op, Place, int], Fence] = {}
        self._losses: list[Fence] = []
        self._evaluating = False
        self.compute_cpu_s = 0.0
        """CPU seconds that this thread spent in the computes of the last step; on an accelerator, in starting them."""

    def run_step(self, step: int, batch: BatchSource) -> float:
        """Execute the list once; returns the sum of losses that this worker reports (0 without a head)."""
        return self._run_list(self.actions, step, batch)

    def run_evaluation(self, step: int, batch: BatchSource) -> float:
        """The forwards alone, nothing kept; returns the sum of losses that this worker reports."""
        self._evaluating = True
        self.recorder.begin(OP_NUMBERS[Op.EVALUATE], 0, 0, 0, step)
        try:
            return self._run_list(self.evaluation, step, batch)
        finally:
            self._evaluating = False
            self.recorder.end()

    def _run_list(self, actions: Sequence[Action], step: int, batch: BatchSource) -> float:
        self.step, self.compute_cpu_s = step, 0.0
        self._losses.clear()
        self._expect_messages(actions)
        for action in actions:
            self.current = action
            if self._evaluating:
                self._run(action, batch)
                continue
            number = self.wiring.pipeline_numbers.get(action.pipeline, 0)
            self.recorder.begin(OP_NUMBERS[action.op], number, action.stage, action.microbatch, step)
            if self.fault is not None:
                self.fault.strike(self.rank, step, action)
            self._run(action, batch)
            self.recorder.end()
        for channels in self.wiring.senders.values():
            for sender, _ in channels:
                sender.flush()
        self.current = None
        return sum(float(self.driver.sync(loss)) for loss in self._losses)

    def _expect_messages(self, actions: Sequence[Action]) -> None:
        due: dict[tuple[Op, Place], list[int]] = defaultdict(list)
        for action in actions:
            if action.op in RECV_OPS:
                due[action.op, (action.pipeline, action.stage)].append(action.microbatch)
        for key, microbatches in due.items():
            for receiver, _ in self.wiring.receivers[key]:
                receiver.expect(self.step, microbatches)

    def _run(self, action: Action, batch: BatchSource) -> None:
        place, microbatch = (action.pipeline, action.stage), action.microbatch
        match action.op:
            case Op.FORWARD:
                self._forward(place, microbatch, batch)
            case Op.BACKWARD | Op.INPUT_GRADIENT:
                self._backward(action.op, place, microbatch)
            case Op.WEIGHT_GRADIENT:
                self._submit(lambda: self.wiring.stages[place].backward_weight(microbatch))
            case Op.SEND_ACTIVATION | Op.SEND_GRADIENT:
                value = self.driver.sync(self._values.pop((action.op, place, microbatch)))
                for sender, part in self.wiring.senders[action.op, place]:
                    sender.send(self.step, microbatch, value[part])
            case Op.RECV_ACTIVATION | Op.RECV_GRADIENT:
                self._values[action.op, place, microbatch] = Fence(self._receive(action.op, place, microbatch))
            case Op.REDUCE:
                self.update.reduce(action.stage)
            case Op.NORM:
                self.update.norm()
            case Op.STEP:
                self.driver.sync(self._submit(self.update.step))

    def _receive(self, op: Op, place: Place, microbatch: int) -> Tensor:
        """The parts of a message put together; a single part is the message."""
        channels = self.wiring.receivers[op, place]
        if len(channels) == 1:
            return channels[0][0].receive(self.step, microbatch)
        whole = torch.empty(self.wiring.shapes[place], dtype=self.wiring.dtype, device=self.wiring.torch_device)
        for receiver, part in channels:
            whole[part] = receiver.receive(self.step, microbatch)
        return whole

    def _forward(self, place: Place, microbatch: int, batch: BatchSource) -> None:
        first, last = place in self.wiring.first_places, place in self.wiring.last_places
        if first:
            value = batch.tokens(place, microbatch)
        else:
            value = self._values.pop((Op.RECV_ACTIVATION, place, microbatch)).result
        labels = batch.labels(place, microbatch) if last else None
        stage = self.wiring.stages[place]
        if self._evaluating:
            fence = self._submit(lambda: stage.evaluate(value, labels))
        else:
            fence = self._submit(lambda: stage.forward(microbatch, value, labels))
        if not last:
            self._values[Op.SEND_ACTIVATION, place, microbatch] = fence
        elif place in self.wiring.counts_loss:
            self._losses.append(fence)

    def _backward(self, op: Op, place: Place, microbatch: int) -> None:
        received = self._values.pop((Op.RECV_GRADIENT, place, microbatch), None)
        gradient = None if received is None else received.result
        stage = self.wiring.stages[place]
        run = stage.backward if op is Op.BACKWARD else stage.backward_input
        fence = self._submit(lambda: run(microbatch, gradient))
        if place not in self.wiring.first_places:
            self._values[Op.SEND_GRADIENT, place, microbatch] = fence

    def _submit(self, work: Callable[[], Any]) -> Fence:
        before = time.thread_time()
        fence = self.driver.submit(work)
        self.compute_cpu_s += time.thread_time() - before
        return fence
