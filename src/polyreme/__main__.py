"""`python -m polyreme`."""

from polyreme.cli.main import entry

if __name__ == "__main__":
    entry()
