"""The command line, one file a command or group of them.

One file a command; `options` has what they share. An error is one sentence with its fix on
standard error and exit code 1 (2 for a command line that cannot be meant), never a traceback.
"""

from bide.cli.main import main

__all__ = ["main"]
