"""Interleaved 1F1B, also where workers hold unequal numbers of stages, and GPipe, which is the same run far ahead.

Narayanan et al., arXiv 2104.04473, section 2.2: a worker goes through its stages in rounds of as many microbatches as
there are workers. It runs ahead by the rounds before its last stage and by the way from there to the loss and back,
then does one forward and one backward in turn. With the same number of stages everywhere this is the published order.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from polyreme.schedules.action import RECEIVES_POSTED, Op
from polyreme.schedules.greedy import Work


def gpipe_orders(places: Sequence[tuple[int, ...]], num_microbatches: int) -> list[list[Work]]:
    """All forwards, then all backwards. Huang et al., arXiv 1811.06965, figure 2c; several stages in rounds, too."""
    return _orders(places, num_microbatches, [len(stages) * num_microbatches for stages in places])


def interleaved_orders(places: Sequence[tuple[int, ...]], num_microbatches: int) -> list[list[Work]]:
    """Order of every place."""
    num_stages = sum(map(len, places))
    longest = max(stop - start for start, stop in pairwise(_round_bounds(num_microbatches, len(places))))
    ahead = [(len(stages) - 1) * longest + 2 * (num_stages - 1 - stages[-1]) for stages in places]
    return _orders(places, num_microbatches, ahead)


def _orders(places: Sequence[tuple[int, ...]], num_microbatches: int, ahead: Sequence[int]) -> list[list[Work]]:
    """Run the pattern; where it would wait for ever, a place does what it can first."""
    run = _Run(places, num_microbatches)
    while run.left:
        moved = False
        for place in range(len(places)):
            while run.can(*(wanted := run.wanted(place, ahead[place]))):
                run.do(*wanted)
                moved = True
        if not moved and run.left:
            run.leave_pattern()
    return run.orders


class _Run:
    """How many forwards and backwards every stage has done."""

    def __init__(self, places: Sequence[tuple[int, ...]], num_microbatches: int) -> None:
        self.places, self.num_microbatches = places, num_microbatches
        self.place_of = {stage: place for place, stages in enumerate(places) for stage in stages}
        self.last = len(self.place_of) - 1
        self.left = 2 * len(self.place_of) * num_microbatches
        self.orders: list[list[Work]] = [[] for _ in places]
        self.done = {op: [0] * len(self.place_of) for op in (Op.FORWARD, Op.BACKWARD)}
        self.bounds = _round_bounds(num_microbatches, len(places))

    def wanted(self, place: int, ahead: int) -> tuple[Op, int]:
        """What the pattern has next: a forward while not more than `ahead` are without their backward."""
        stages = self.places[place]
        forwards, backwards = self.done[Op.FORWARD], self.done[Op.BACKWARD]
        num_ahead = sum(forwards[stage] - backwards[stage] for stage in stages)
        if num_ahead <= ahead and any(forwards[stage] < self.num_microbatches for stage in stages):
            return Op.FORWARD, self._next(stages, forwards)
        return Op.BACKWARD, self._next(stages[::-1], backwards)

    def can(self, op: Op, stage: int) -> bool:
        """Whether the stage's next forward or backward has its input, and its message a posted receive."""
        microbatch = self.done[op][stage]
        if microbatch == self.num_microbatches:
            return False
        forwards, backwards = self.done[Op.FORWARD], self.done[Op.BACKWARD]
        if op is Op.FORWARD:
            return (stage == 0 or forwards[stage - 1] > microbatch) and self._may_send(op, stage, stage + 1)
        ready = stage == self.last or backwards[stage + 1] > microbatch
        return ready and forwards[stage] > microbatch and self._may_send(op, stage, stage - 1)

    def do(self, op: Op, stage: int) -> None:
        """Do it."""
        self.orders[self.place_of[stage]].append((op, stage, self.done[op][stage]))
        self.done[op][stage] += 1
        self.left -= 1

    def leave_pattern(self) -> None:
        """Do one thing that can be done although its place has another one next: a forward if there is one."""
        self.do(*next((op, stage) for op in self.done for stage in self.place_of if self.can(op, stage)))

    def _next(self, stages: Sequence[int], done: Sequence[int]) -> int:
        """The stage whose turn it is: the first that is behind in its round, or else begins the next one."""
        rounds = [bisect_right(self.bounds, done[stage]) for stage in stages]
        return stages[rounds.index(min(rounds))]

    def _may_send(self, op: Op, stage: int, neighbour: int) -> bool:
        if self.place_of.get(neighbour, self.place_of[stage]) == self.place_of[stage]:
            return True
        return self.done[op][stage] < self.done[op][neighbour] + RECEIVES_POSTED


def _round_bounds(num_microbatches: int, num_places: int) -> list[int]:
    """Where rounds begin and the last ends; what fills no round is spread over them."""
    num_rounds = max(1, num_microbatches // num_places)
    return [num_microbatches * number // num_rounds for number in range(num_rounds + 1)]
