"""fttrainer works without polyreme."""

import subprocess
import sys


def test_importing_fttrainer_does_not_import_polyreme() -> None:
    code = "import fttrainer, sys; print(fttrainer.__version__, 'polyreme' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    version, loaded = result.stdout.split()
    assert version[0].isdigit()
    assert loaded == "False"
