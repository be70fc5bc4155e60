"""The command starts quickly: a person who asks for help does not wait for what the command does not need."""

import os
import resource
import subprocess
import sys
import time

MAX_CPU_S = 0.5
"""Several times what it takes on a laptop (0.06 s): slow machines pass, an import of torch or pandas does not."""


def test_help_takes_little_cpu_and_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom polyreme.cli.main import main\ntry:\n    main(['--help'])\nfinally:\n    print(*sys.modules)"
    )
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, env=dict(os.environ)
    )
    after, wall_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - started
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    loaded = set(result.stdout.splitlines()[-1].split())
    assert "usage: polyreme" in result.stdout
    assert not loaded & {"torch", "numpy", "pydantic", "rich", "yaml"}
    assert cpu_s <= MAX_CPU_S, f"{cpu_s:.2f} s CPU, {wall_s:.2f} s wall"
