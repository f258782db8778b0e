"""The command line: one file for each command or group of commands.

`options` has the options that commands share. An error is one sentence with its fix on standard
error, never a traceback. The exit code is then 1, or 2 if the command line is invalid.
"""

from bide.cli.main import main

__all__ = ["main"]
