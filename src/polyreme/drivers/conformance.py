"""What any driver must do, as checks that any driver can be put through: `for check in CHECKS: check(driver)`.

A driver of your own is ready for polyreme when all pass. Work handed over here runs on the host; a driver that computes
nothing says so with `computes=False`.
"""

from collections.abc import Callable

from polyreme.drivers.base import DeviceDriver, Fence
from polyreme.drivers.choose import CAPABILITIES


class _WorkFailedError(Exception):
    """What failing work raises here."""


def check_probe(driver: DeviceDriver, *, computes: bool = True) -> None:
    """Probing again finds the same device, under the driver's own name, with memory."""
    del computes
    found = driver.probe()
    assert found == driver.probe(), "probe found two different devices"
    assert found.name == driver.name, f"probe calls the driver {found.name}, its name is {driver.name}"
    assert driver.name in CAPABILITIES, f"drivers.choose.CAPABILITIES lacks {driver.name}"
    assert found.memory_bytes > 0, "a device without memory"


def check_order(driver: DeviceDriver, *, computes: bool = True) -> None:
    """Work runs in the order of submission, and each fence has its own result, in whatever order they are asked for."""
    done: list[int] = []

    def work(number: int) -> Callable[[], int]:
        def run() -> int:
            done.append(number)
            return number * number

        return run

    fences = [driver.submit(work(number)) for number in range(200)]
    results = [driver.sync(fence) for fence in reversed(fences)]
    if computes:
        assert done == list(range(200)), "work ran out of order"
        assert results == [number * number for number in reversed(range(200))], "a fence has another one's result"


def check_repeated_sync(driver: DeviceDriver, *, computes: bool = True) -> None:
    """A fence can be synchronised again, and has the same result."""
    fence = driver.submit(lambda: 42)
    assert driver.sync(fence) == driver.sync(fence) == (42 if computes else None)


def check_failure(driver: DeviceDriver, *, computes: bool = True) -> None:
    """What work raises comes out of submit or sync once, and the driver goes on."""
    if not computes:
        return

    def fail() -> None:
        raise _WorkFailedError

    raised = 0
    fence = Fence()
    try:
        fence = driver.submit(fail)
    except _WorkFailedError:
        raised += 1
    else:
        try:
            driver.sync(fence)
        except _WorkFailedError:
            raised += 1
    assert raised == 1, "the error of the work was lost"
    assert driver.sync(driver.submit(lambda: "after")) == "after", "the driver did not survive an error"


CHECKS: tuple[Callable[..., None], ...] = (check_probe, check_order, check_repeated_sync, check_failure)
