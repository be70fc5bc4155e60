"""What every driver does, and how memory and speed are emulated."""

import time

import pytest

from polyreme.drivers.base import DeviceDriver, MemoryLedger
from polyreme.drivers.cpu import CpuDriver
from polyreme.drivers.emulated import EmulatedDriver, core_fractions
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
    def burn() -> float:
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass
        return time.thread_time()

    started = time.perf_counter()
    EmulatedDriver(1e9, 0.25).submit(burn)
    assert time.perf_counter() - started >= 0.2


@pytest.mark.parametrize(("speeds", "cores"), [([4, 2, 2, 1], 2), ([1], 8), ([3, 3], 64), ([5, 1, 1], 1)])
def test_core_fractions_keep_the_ratio_and_fit_the_cores(speeds: list[float], cores: int) -> None:
    fractions = core_fractions(speeds, cores)
    assert sum(fractions) <= cores
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
