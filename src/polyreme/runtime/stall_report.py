"""A stall in words: the rank at fault, then who waits for it and for whom, one rank a line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polyreme.runtime.stalls import RankState, Stall, Waits, waiters
from polyreme.schedules.action import ActionLists

MAX_LINES = 8
_NS = 10**9


@dataclass(frozen=True, slots=True)
class StallReport:
    """What is told about a stall at `now_ns` of the monotonic clock. `workers` are the names of the ranks."""

    stall: Stall
    states: Mapping[int, RankState]
    waits: Waits
    lists: ActionLists
    workers: Sequence[str]
    now_ns: int

    def place(self, rank: int) -> str:
        """Where a rank is: its action, or the two that it is between."""
        state, actions = self.states[rank], self.lists[rank]
        if state.begun > state.ended:
            return str(actions[state.ended])
        if state.ended == 0:
            return "before its first action"
        if state.ended == len(actions):
            return f"after {actions[-1]}"
        return f"between {actions[state.ended - 1]} and {actions[state.ended]}"

    def lines(self) -> list[str]:
        """The ranks at fault first, then the chain of those that wait. Of many ranks one chain; the rest is counted."""
        shown = self.stall.culprits[:MAX_LINES]
        if self.stall.is_cycle:
            lines = [f"{len(self.stall.culprits)} ranks wait for each other in a cycle"]
            lines += [self._waiter(rank, f"rank {following}") for rank, following in self._cycle() if rank in shown]
        else:
            lines = [self._culprit(rank) for rank in shown]
        targets = waiters(self.waits, shown[0])
        chain = [rank for rank in self._chain(targets) if rank not in shown][: MAX_LINES - len(shown)]
        above = shown[0] if len(shown) == 1 else None
        for rank in chain:
            lines.append(self._waiter(rank, "it" if targets[rank] == above else f"rank {targets[rank]}"))
            above = rank
        involved = {rank for rank, for_whom in self.waits.items() if for_whom}.union(self.stall.culprits)
        if rest := len(involved.difference(shown, chain)):
            lines.append(f"{rest} more wait or have not moved")
        return lines

    def edges(self) -> list[dict[str, Any]]:
        """Every rank that waits, as plain data: where, for whom, for how many seconds."""
        return [
            {
                "rank": rank,
                "worker": self.workers[rank],
                "waits_for": list(targets),
                "action": self.place(rank),
                "step": self.states[rank].step,
                "seconds": round(self._seconds(rank), 3),
            }
            for rank, targets in sorted(self.waits.items())
            if targets
        ]

    def _culprit(self, rank: int) -> str:
        state = self.states[rank]
        where = f"{self._at(rank)} of step {state.step} since {self._seconds(rank):.1f} s"
        if state.is_stopped:
            return f"{self._name(rank)} is stopped (SIGSTOP) {where}"
        return f"{self._name(rank)} is {where} and waits for nobody"

    def _waiter(self, rank: int, for_whom: str) -> str:
        state = self.states[rank]
        step = f" of step {state.step}" if state.step != self.states[self.stall.culprits[0]].step else ""
        return f"{self._name(rank)} waits for {for_whom} {self._at(rank)}{step} since {self._seconds(rank):.1f} s"

    def _chain(self, targets: Mapping[int, int]) -> list[int]:
        """All that wait, nearest first; if they are too many, only those between the farthest and the culprit."""
        if len(targets) < MAX_LINES:
            return list(targets)
        rank, path = next(reversed(targets)), []
        while rank in targets:
            path.append(rank)
            rank = targets[rank]
        return path[::-1]

    def _cycle(self) -> list[tuple[int, int]]:
        ranks = self.stall.culprits
        return list(zip(ranks, (*ranks[1:], ranks[0]), strict=True))

    def _at(self, rank: int) -> str:
        is_running = self.states[rank].begun > self.states[rank].ended
        return f"at {self.place(rank)}" if is_running else self.place(rank)

    def _name(self, rank: int) -> str:
        return f"rank {rank} ({self.workers[rank]})"

    def _seconds(self, rank: int) -> float:
        return (self.now_ns - self.states[rank].since_ns) / _NS
