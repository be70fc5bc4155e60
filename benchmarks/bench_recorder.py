"""Cost of recording one action (begin and end), against the goal of 2 us: `python benchmarks/bench_recorder.py`."""

import tempfile
import time
from pathlib import Path

from polyreme.telemetry.recorder import EventRecorder, NullRecorder, Recorder

NUM_ACTIONS = 200_000
ROUNDS = 5


def seconds_per_action(recorder: Recorder) -> float:
    start = time.perf_counter()
    for microbatch in range(NUM_ACTIONS):
        recorder.begin(1, 0, 3, microbatch, 17)
        recorder.end()
    return (time.perf_counter() - start) / NUM_ACTIONS


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("null", "events"):
            times = []
            for number in range(ROUNDS):
                recorder = NullRecorder() if name == "null" else EventRecorder(Path(folder) / f"rank-{number}.bin")
                times.append(seconds_per_action(recorder))
                recorder.close()
            print(f"{name}: {min(times) * 1e6:.2f} us per action (best of {ROUNDS}), {max(times) * 1e6:.2f} us (worst)")


if __name__ == "__main__":
    main()
