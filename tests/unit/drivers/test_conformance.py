"""The conformance suite over every driver, and what asynchronous ones have beside: a queue, fences, NUMA nodes."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from polyreme.drivers.base import DeviceDriver, DeviceInfo, Fence
from polyreme.drivers.choose import CAPABILITIES, default_backend
from polyreme.drivers.conformance import CHECKS
from polyreme.drivers.cpu import CpuDriver
from polyreme.drivers.cuda import CudaDriver
from polyreme.drivers.emulated import EmulatedDriver
from polyreme.drivers.null import NullDriver
from polyreme.drivers.numa import bind_to_node, node_of_pci, parse_cpu_list
from polyreme.drivers.queue import SubmissionQueue, wait_for
from polyreme.errors import InputError


class LaggingEvent:
    """Reached once it has been asked `patience` times, or by waiting for it."""

    def __init__(self, patience: int, waited: list["LaggingEvent"]) -> None:
        self.patience, self.waited = patience, waited

    def record(self) -> None:
        """The device marks the place."""

    def query(self) -> bool:
        self.patience -= 1
        return self.patience < 0

    def synchronize(self) -> None:
        self.patience = -1
        self.waited.append(self)


class FakeCuda:
    """As much of torch.cuda as the driver uses: two GPUs whose events lag behind."""

    def __init__(self, *, available: bool = True, patience: int = 10**9) -> None:
        self.available, self.patience = available, patience
        self.current: int | None = None
        self.waited: list[LaggingEvent] = []

    def is_available(self) -> bool:
        return self.available

    def device_count(self) -> int:
        return 2

    def set_device(self, index: int) -> None:
        self.current = index

    def get_device_properties(self, index: int) -> SimpleNamespace:
        return SimpleNamespace(total_memory=80e9, pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=index)

    def Event(self) -> LaggingEvent:  # noqa: N802 - torch's name
        return LaggingEvent(self.patience, self.waited)


def cuda(**fake: int) -> CudaDriver:
    return CudaDriver(70e9, 1, FakeCuda(**fake))  # type: ignore[arg-type]


DRIVERS: list[Callable[[], DeviceDriver]] = [
    lambda: CpuDriver(1e9),
    lambda: EmulatedDriver(1e9, 0.9),
    NullDriver,
    lambda: cuda(patience=3),
    cuda,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("make", DRIVERS, ids=["cpu", "emulated", "null", "cuda that is quick", "cuda that is slow"])
def test_every_driver_conforms(make: Callable[[], DeviceDriver], check: Callable[..., None]) -> None:
    driver = make()
    check(driver, computes=driver.name != "null")


class Forgetful:
    """A driver that loses errors and results."""

    name = "cpu"

    def probe(self) -> DeviceInfo:
        return DeviceInfo(name="other", torch_device="cpu", memory_bytes=1.0)

    def submit(self, work: Callable[[], object]) -> Fence:
        try:
            return Fence(work())
        except Exception:  # noqa: BLE001 - that is what is wrong with it
            return Fence()

    def sync(self, fence: Fence) -> object:
        result, fence.result = fence.result, None
        return result


@pytest.mark.parametrize("check", [check for check in CHECKS if check.__name__ != "check_order"])
def test_the_suite_finds_what_is_wrong(check: Callable[..., None]) -> None:
    with pytest.raises(AssertionError):
        check(Forgetful())


def test_a_host_never_runs_further_ahead_than_the_queue_allows() -> None:
    fake = FakeCuda()
    driver = CudaDriver(1e9, 0, fake, most_ahead=4)
    fences = [driver.submit(lambda: None) for _ in range(10)]
    assert len(driver.queue) == 4
    assert fake.waited == [fence.event for fence in fences[:6]]
    driver.sync(fences[-1])
    assert fake.waited[-1] is fences[-1].event


def test_a_wait_spins_before_it_blocks() -> None:
    waited: list[LaggingEvent] = []
    wait_for(LaggingEvent(2, waited))
    assert waited == []
    late = LaggingEvent(10**9, waited)
    wait_for(late)
    assert waited == [late]


def test_what_has_finished_leaves_the_queue() -> None:
    queue, waited = SubmissionQueue(), list[LaggingEvent]()
    fences = [Fence(event=LaggingEvent(0, waited)) for _ in range(5)]
    for fence in fences:
        queue.add(fence)
    queue.wait(fences[-1])
    assert len(queue) == 0


def test_cuda_finds_its_device_or_says_why_not() -> None:
    driver = cuda()
    found = driver.probe()
    assert (found.torch_device, found.memory_bytes) == ("cuda:1", 70e9)
    assert driver.cuda.current == 1
    with pytest.raises(InputError, match="torch finds no CUDA device here"):
        cuda(available=False).probe()
    with pytest.raises(InputError, match="GPU 5 was asked for, the machine has 2"):
        CudaDriver(1e9, 5, FakeCuda()).probe()


def test_this_machine_says_clearly_that_it_has_no_gpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("no such device here: a machine without GPU")
    with pytest.raises(InputError, match="torch finds no CUDA device here"):
        CudaDriver(1e9, 0).probe()


@pytest.mark.parametrize(
    ("text", "cores"), [("0-3,8\n", {0, 1, 2, 3, 8}), ("5", {5}), ("", set()), ("0-1,4-5", {0, 1, 4, 5})]
)
def test_core_lists_of_the_kernel_are_read(text: str, cores: set[int]) -> None:
    assert parse_cpu_list(text) == cores


@pytest.mark.skipif(sys.platform != "linux", reason="no such device here: Linux cores")
def test_a_worker_is_bound_to_the_cores_next_to_its_device(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    one = min(before)
    (tmp_path / "node0").mkdir()
    (tmp_path / "node0" / "cpulist").write_text(f"{one},4000-4001\n", encoding="ascii")
    (tmp_path / "node1").mkdir()
    (tmp_path / "node1" / "cpulist").write_text("4000-4001\n", encoding="ascii")
    try:
        assert bind_to_node(1, tmp_path) == before, "a node with no core of ours changes nothing"
        assert bind_to_node(None, tmp_path) == bind_to_node(7, tmp_path) == before
        assert bind_to_node(0, tmp_path) == {one}
        assert os.sched_getaffinity(0) == {one}
    finally:
        os.sched_setaffinity(0, before)


def test_the_node_of_a_device_is_what_the_kernel_says(tmp_path: Path) -> None:
    for address, content in (("0000:3b:01.0", "1\n"), ("0000:3c:00.0", "-1\n"), ("0000:3d:00.0", "x\n")):
        (tmp_path / address).mkdir()
        (tmp_path / address / "numa_node").write_text(content, encoding="ascii")
    found = [node_of_pci(f"0000:3{bus}.0", tmp_path) for bus in ("B:01", "c:00", "d:00", "e:00")]
    assert found == [1, None, None, None]


def test_groups_of_a_run_have_a_backend_for_every_device() -> None:
    assert default_backend(["cpu", "emulated"]) == "gloo"
    assert default_backend(["cuda", "cpu"]) == "cpu:gloo,cuda:nccl"
    assert {one.backend for one in CAPABILITIES.values() if one.host_memory} == {"gloo"}
