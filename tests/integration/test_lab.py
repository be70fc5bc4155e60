"""The lab for real: shares of a core, rates of a link, the same training as without, and nothing left behind."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_run import inputs, pipeline, write_text

from polyreme.catalog.fleet import build_fleet
from polyreme.errors import OutOfDeviceMemoryError, WorkerLostError
from polyreme.lab.cgroups import PREFIX, DeviceGroups, find_hierarchies
from polyreme.lab.lab import Lab, why_not
from polyreme.runtime.faults import Fault, FaultKind
from polyreme.schedules.action import parse_action
from polyreme.specs.cluster import ClusterSpec, DeviceEntry, Node, NodeLinks
from polyreme.specs.device import DeviceKind, LinkKind
from polyreme.specs.fields import ScheduleName
from polyreme.training.run import run
from polyreme.training.runnable import Inputs

WORKERS = ("one/w0", "one/w1", "two/w0")
RATE_BYTES_PER_S = 25e6
SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture(autouse=True)
def _possible() -> Iterator[None]:
    reason = why_not()
    if reason is not None:
        pytest.skip(f"no such device here: a lab, {reason}")
    yield
    assert leftovers(os.getpid()) == []


def leftovers(launcher: int) -> list[str]:
    """What a lab of this launcher has left on the machine."""
    hierarchies = find_hierarchies(Path("/proc/mounts").read_text(encoding="utf-8"))
    assert hierarchies is not None
    groups = [root / f"{PREFIX}{launcher}" for root in (hierarchies.cpu, hierarchies.memory)]
    ends = [*Path("/sys/class/net").iterdir(), *(Path("/run/netns").iterdir() if Path("/run/netns").is_dir() else ())]
    return [str(path) for path in (*groups, *ends) if path.exists() and str(launcher) in path.name]


def cluster(memory_bytes: float = 1e9) -> ClusterSpec:
    kinds = (
        DeviceKind(name="fast", driver="emulated", memory_bytes=memory_bytes, speed=0.3),
        DeviceKind(name="slow", driver="emulated", memory_bytes=memory_bytes, speed=0.15),
    )
    links = NodeLinks(intra="wire", inter="net")
    return ClusterSpec(
        name="two nodes",
        nodes=(
            Node(name="one", devices=(DeviceEntry(kind="fast", name="w", count=2),), links=links),
            Node(name="two", devices=(DeviceEntry(kind="slow", name="w"),), links=links),
        ),
        device_kinds=kinds,
        link_kinds=(
            LinkKind(name="wire", bandwidth_bytes_per_s=1e9, latency_s=5e-5),
            LinkKind(name="net", bandwidth_bytes_per_s=RATE_BYTES_PER_S, latency_s=5e-5),
        ),
    )


def three_workers(tmp_path: Path, steps: int = 3, memory_bytes: float = 1e9) -> Inputs:
    data = write_text(tmp_path / "text")
    given = inputs([pipeline("a", [2, 4], 4, ScheduleName.ZB_H1)], data, steps=steps)
    plan = dataclasses.replace(given.plan, workers=WORKERS)
    return dataclasses.replace(given, plan=plan, cluster=cluster(memory_bytes))


SPIN = """
import os, sys, time
from polyreme.lab.cgroups import enter
enter(sys.argv[1].split(","), os.getpid(), 10**9)
begun, stop = time.process_time(), time.monotonic() + 3
while time.monotonic() < stop:
    pass
print((time.process_time() - begun) / 3)
"""


def test_devices_get_their_share_of_a_core() -> None:
    hierarchies = find_hierarchies(Path("/proc/mounts").read_text(encoding="utf-8"))
    assert hierarchies is not None
    groups = DeviceGroups(hierarchies, f"{PREFIX}{os.getpid()}")
    groups.make_parent()
    try:
        shares = (0.3, 0.15, 0.05)
        folders = [groups.make(str(share), share) for share in shares]
        spinning = [
            subprocess.Popen([sys.executable, "-c", SPIN, ",".join(map(str, each))], stdout=subprocess.PIPE, text=True)
            for each in folders
        ]
        got = [float(process.communicate()[0]) for process in spinning]
    finally:
        groups.remove()
    for share, measured in zip(shares, got, strict=True):
        assert measured == pytest.approx(share, rel=0.15)


TALK = """
import socket, sys, time
from polyreme.lab.network import enter
enter(sys.argv[1])
size = 15_000_000
if sys.argv[2] == "listen":
    with socket.create_server((sys.argv[3], 5000)) as server:
        print("ready", flush=True)
        connection, _ = server.accept()
        begun, left = time.monotonic(), size
        while left:
            left -= len(connection.recv(min(left, 1 << 16)))
        print(size / (time.monotonic() - begun))
else:
    with socket.create_connection((sys.argv[3], 5000)) as connection:
        connection.sendall(bytes(size))
"""


def test_a_link_between_nodes_has_its_rate() -> None:
    with Lab(build_fleet(cluster()), WORKERS, 2) as lab:
        assert lab.network is not None
        address = lab.network.node_address(1)
        commands = [
            [sys.executable, "-c", TALK, lab.network.namespace(node), role, address]
            for node, role in ((1, "listen"), (0, "send"))
        ]
        listener = subprocess.Popen(commands[0], stdout=subprocess.PIPE, text=True)
        assert listener.stdout is not None
        assert listener.stdout.readline() == "ready\n"
        subprocess.run(commands[1], check=True)
        rate = float(listener.communicate()[0])
    assert rate == pytest.approx(RATE_BYTES_PER_S, rel=0.15)


def test_training_in_the_lab_gives_the_same_losses_bit_for_bit(tmp_path: Path) -> None:
    given = three_workers(tmp_path)
    without, within = run(given, tmp_path / "without"), run(given, tmp_path / "within", in_lab=True)
    assert [step.loss for step in without.steps] == [step.loss for step in within.steps]


def test_a_fault_in_the_lab_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    fault = Fault(1, 1, parse_action("a.1.F2"), FaultKind.KILL)
    with pytest.raises(WorkerLostError, match="rank      1"):
        run(three_workers(tmp_path), tmp_path / "run", fault=fault, in_lab=True)


EAT = """
import os, sys
from polyreme.lab.cgroups import enter
enter(sys.argv[1].split(","), os.getpid(), 30_000_000)
hoard = [bytearray(os.urandom(1_000_000)) for _ in range(200)]
"""


def test_a_device_whose_memory_is_full_is_told_from_one_that_was_killed() -> None:
    with Lab(build_fleet(cluster()), WORKERS, 2) as lab:
        ended = subprocess.run([sys.executable, "-c", EAT, ",".join(lab.seats[1].groups)], check=False)
        assert ended.returncode == -signal.SIGKILL
        assert [lab.out_of_memory(rank) for rank in range(3)] == [False, True, False]


LAUNCHER = """
import sys
from pathlib import Path
sys.path.insert(0, str(Path(sys.argv[2])))
from test_lab import three_workers
from polyreme.training.run import run
if __name__ == "__main__":
    run(three_workers(Path(sys.argv[1]), steps=100_000), Path(sys.argv[1]) / "run", in_lab=True)
"""


def test_what_a_killed_launcher_left_is_removed_by_the_next_lab(tmp_path: Path) -> None:
    script = tmp_path / "launcher.py"
    script.write_text(LAUNCHER, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), *filter(None, sys.path)])}
    launcher = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path), str(Path(__file__).parent)], env=environment
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "run" / "metrics.jsonl").exists():
        assert launcher.poll() is None, "the launcher ended early"
        assert time.monotonic() < deadline, "no step in a minute"
        time.sleep(0.05)
    workers = json.loads((tmp_path / "run" / "processes.json").read_text(encoding="utf-8"))["workers"]
    launcher.kill()
    launcher.wait()
    assert leftovers(launcher.pid)
    while any(Path(f"/proc/{process_id}").exists() for process_id in workers):
        assert time.monotonic() < deadline, "workers outlive their launcher"
        time.sleep(0.05)
    with Lab(build_fleet(cluster()), WORKERS, 2):
        assert leftovers(launcher.pid) == []


def test_memory_that_weights_take_comes_off_what_a_device_may_still_take(tmp_path: Path) -> None:
    """The ledger refuses first: a device that cannot hold its stage is named by it, in the lab as well."""
    with pytest.raises(OutOfDeviceMemoryError, match="holds"):
        run(three_workers(tmp_path, memory_bytes=100e3), tmp_path / "run", in_lab=True)
