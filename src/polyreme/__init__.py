"""polyreme: plan, simulate, run and watch one training job over unlike devices."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("polyreme")
except PackageNotFoundError:  # running from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
