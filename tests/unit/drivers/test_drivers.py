"""What every driver does, and how memory and speed are emulated."""

import time

import pytest

from polyreme.drivers.base import DeviceDriver, MemoryLedger
from polyreme.drivers.cpu import CpuDriver
from polyreme.drivers.emulated import CORE_SHARE, EmulatedDriver, core_fractions
from polyreme.drivers.null import NullDriver
from polyreme.errors import OutOfDeviceMemoryError

DRIVERS: list[DeviceDriver] = [CpuDriver(1e9), EmulatedDriver(1e9, 0.9), NullDriver()]


@pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: driver.name)
def test_a_driver_runs_work_in_order_and_returns_its_result(driver: DeviceDriver) -> None:
    assert driver.probe().name == driver.name
    done: list[int] = []
    fences = [driver.submit(lambda number=number: done.append(number) or number) for number in range(3)]  # type: ignore[misc]
    results = [driver.sync(fence) for fence in fences]
    expected = [] if driver.name == "null" else [0, 1, 2]
    assert done == expected
    assert results == (expected or [None, None, None])


def test_an_error_of_the_work_comes_out() -> None:
    with pytest.raises(ZeroDivisionError):
        EmulatedDriver(1e9, 0.5).submit(lambda: 1 / 0)


def test_an_emulated_device_takes_cpu_time_over_core_fraction() -> None:
    cpu_s: list[float] = []

    def burn() -> None:
        start = time.thread_time()
        while time.thread_time() < start + 0.05:
            pass
        cpu_s.append(time.thread_time() - start)

    ratios = []
    for _ in range(5):
        started = time.perf_counter()
        EmulatedDriver(1e9, 0.5).submit(burn)
        ratios.append((time.perf_counter() - started) * 0.5 / cpu_s[-1])
    assert min(ratios) >= 0.99, "never early"
    assert min(ratios) <= 1.2, "late only where the machine is busy"


def test_time_asleep_costs_an_emulated_device_nothing() -> None:
    started = time.perf_counter()
    EmulatedDriver(1e9, 0.1).submit(lambda: time.sleep(0.1))
    assert time.perf_counter() - started < 0.2


@pytest.mark.parametrize(("speeds", "cores"), [([4, 2, 2, 1], 2), ([1], 8), ([3, 3], 64), ([5, 1, 1], 1)])
def test_core_fractions_keep_the_ratio_and_fit_the_cores(speeds: list[float], cores: int) -> None:
    fractions = core_fractions(speeds, cores)
    assert sum(fractions) <= CORE_SHARE * cores * (1 + 1e-12)
    assert max(fractions) <= 1
    assert [f / fractions[0] for f in fractions] == pytest.approx([s / speeds[0] for s in speeds])


def test_a_ledger_refuses_what_does_not_fit_and_remembers_its_peak() -> None:
    ledger = MemoryLedger("n/w0 (slow)", 100)
    ledger.hold("weights", 60)
    ledger.hold("activations", 30)
    ledger.release("activations", 30)
    ledger.hold("activations", 10)
    assert ledger.peak_bytes == {"weights": 60, "activations": 30}
    with pytest.raises(
        OutOfDeviceMemoryError, match=r"n/w0 \(slow\) holds 121 B of 100 B \(weights 60 B, activations 61 B\)"
    ):
        ledger.hold("activations", 51)
