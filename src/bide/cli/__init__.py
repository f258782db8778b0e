"""The command line: one file for each command or group of commands.

`options` has the options that commands share. An error is one sentence with its fix on standard
error, never a traceback. The exit code is then 1, 2 if the command line is invalid, or 3 if a name
does not exist.
"""

from bide.cli.main import main

__all__ = ["main"]
