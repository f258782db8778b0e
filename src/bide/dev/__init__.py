"""One command for development: a server that keeps its data, and a worker that follows the source.

    dev ──starts──> server     its data in `.bide/`, gone when dev is gone
        ──line────> worker     another whenever a source changes
        ──starts──> command    what else was asked for

Every part has a session of its own, so that Ctrl-C reaches `dev` alone, which stops them in order.
A part learns from its end of a line, or from a watcher's, that `dev` was killed, and ends too.
"""

from bide.dev.program import Program, find_program
from bide.dev.run import Dev

__all__ = ["Dev", "Program", "find_program"]
