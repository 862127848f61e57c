"""The command line, run in this process."""

from tests.unit.cli.conftest import clean_environment, cli

__all__ = ["clean_environment", "cli"]
