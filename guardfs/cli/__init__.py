"""The command line: arguments to settings to daemon, launcher or client."""

from guardfs.cli.app import main

__all__ = ["main"]
