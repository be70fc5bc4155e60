"""fttrainer: fault-tolerant training for any PyTorch loop. Stand-alone; imports nothing of polyreme."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("fttrainer")
except PackageNotFoundError:  # running from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
