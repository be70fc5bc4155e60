"""Walks one worker's action list: the same list that the simulator replays, action by action, in order."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from polyreme.adapters.base import StageModule
from polyreme.drivers.base import DeviceDriver
from polyreme.runtime.faults import Fault
from polyreme.runtime.transport import Receiver, Sender
from polyreme.schedules.action import RECV_OPS, Action, Op
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


@dataclass(frozen=True, slots=True)
class Wiring:
    """What one worker is connected to. Channels of a boundary come in order of the sequences that they carry."""

    stages: Mapping[Place, StageModule]
    senders: Mapping[tuple[Op, Place], Sequence[tuple[Sender, int, int]]]
    receivers: Mapping[tuple[Op, Place], Sequence[Receiver]]
    pipeline_numbers: Mapping[str, int]
    first_places: frozenset[Place]
    last_places: frozenset[Place]


class Executor:
    """One worker's interpreter. `current` is the action under way, for whoever reports a failure."""

    def __init__(
        self,
        rank: int,
        actions: Sequence[Action],
        wiring: Wiring,
        driver: DeviceDriver,
        recorder: Recorder,
        reduce: Callable[[int], None],
        update: Callable[[], None],
        fault: Fault | None = None,
    ) -> None:
        self.rank, self.actions, self.wiring, self.driver, self.recorder = rank, actions, wiring, driver, recorder
        self.reduce, self.update, self.fault = reduce, update, fault
        self.current: Action | None = None
        self.step = 0
        self._values: dict[tuple[Op, Place, int], Tensor] = {}
        self._loss_sum = 0.0

    def run_step(self, step: int, batch: BatchSource) -> float:
        """Execute the list once; returns the sum of losses that this worker's head produced (0 without a head)."""
        self.step, self._loss_sum = step, 0.0
        self._expect_messages()
        for action in self.actions:
            self.current = action
            number = self.wiring.pipeline_numbers.get(action.pipeline, 0)
            self.recorder.begin(OP_NUMBERS[action.op], number, action.stage, action.microbatch, step)
            if self.fault is not None:
                self.fault.strike(self.rank, step, action)
            self._run(action, batch)
            self.recorder.end()
        for channels in self.wiring.senders.values():
            for sender, _, _ in channels:
                sender.flush()
        self.current = None
        return self._loss_sum

    def _expect_messages(self) -> None:
        due: dict[tuple[Op, Place], list[int]] = defaultdict(list)
        for action in self.actions:
            if action.op in RECV_OPS:
                due[action.op, (action.pipeline, action.stage)].append(action.microbatch)
        for key, microbatches in due.items():
            for receiver in self.wiring.receivers[key]:
                receiver.expect(self.step, microbatches)

    def _run(self, action: Action, batch: BatchSource) -> None:
        place = (action.pipeline, action.stage)
        match action.op:
            case Op.FORWARD:
                self._forward(place, action.microbatch, batch)
            case Op.BACKWARD:
                self._backward(place, action.microbatch)
            case Op.SEND_ACTIVATION | Op.SEND_GRADIENT:
                value = self._values.pop((action.op, place, action.microbatch))
                for sender, start, stop in self.wiring.senders[action.op, place]:
                    sender.send(self.step, action.microbatch, value[start:stop])
            case Op.RECV_ACTIVATION | Op.RECV_GRADIENT:
                parts = [
                    receiver.receive(self.step, action.microbatch)
                    for receiver in self.wiring.receivers[action.op, place]
                ]
                self._values[action.op, place, action.microbatch] = parts[0] if len(parts) == 1 else torch.cat(parts)
            case Op.REDUCE:
                self.reduce(action.stage)
            case Op.STEP:
                self._compute(self.update)

    def _forward(self, place: Place, microbatch: int, batch: BatchSource) -> None:
        first, last = place in self.wiring.first_places, place in self.wiring.last_places
        value = batch.tokens(place, microbatch) if first else self._values.pop((Op.RECV_ACTIVATION, place, microbatch))
        labels = batch.labels(place, microbatch) if last else None
        output = self._compute(lambda: self.wiring.stages[place].forward(microbatch, value, labels))
        if last:
            self._loss_sum += float(output)
        else:
            self._values[Op.SEND_ACTIVATION, place, microbatch] = output

    def _backward(self, place: Place, microbatch: int) -> None:
        gradient = self._values.pop((Op.RECV_GRADIENT, place, microbatch), None)
        result = self._compute(lambda: self.wiring.stages[place].backward(microbatch, gradient))
        if place not in self.wiring.first_places:
            self._values[Op.SEND_GRADIENT, place, microbatch] = result

    def _compute(self, work: Callable[[], Tensor | None]) -> Tensor:
        result: Tensor = self.driver.sync(self.driver.submit(work))
        return result
