"""Where groups are made, from the text of mounts, and what share becomes what quota."""

from pathlib import Path

import pytest

from polyreme.lab.cgroups import Hierarchies, find_hierarchies, quota

V1 = """tmpfs /sys/fs/cgroup tmpfs rw,mode=755 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,nosuid,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0
cgroup /sys/fs/cgroup/pids cgroup rw,relatime,pids 0 0
"""
V2 = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,nodev,noexec,relatime,nsdelegate 0 0\n"
ROOT = Path("/sys/fs/cgroup")


@pytest.mark.parametrize(
    ("mounts", "found"),
    [
        (V1, Hierarchies(ROOT / "cpu,cpuacct", ROOT / "memory", 1)),
        (V2, Hierarchies(ROOT, ROOT, 2)),
        (
            V1 + V2.replace("/cgroup ", "/cgroup/unified "),
            Hierarchies(ROOT / "cpu,cpuacct", ROOT / "memory", 1),
        ),
        ("cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n", None),
        ("proc /proc proc rw 0 0\nbroken\n\n", None),
    ],
)
def test_hierarchies_are_found_in_mounts(mounts: str, found: Hierarchies | None) -> None:
    assert find_hierarchies(mounts) == found


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.3, (3000, 10_000)),
        (0.1, (1000, 10_000)),
        (0.05, (1000, 20_000)),
        (1.0, (10_000, 10_000)),
    ],
)
def test_a_share_of_a_core_becomes_a_quota_that_the_kernel_accepts(share: float, expected: tuple[int, int]) -> None:
    assert quota(share) == expected
