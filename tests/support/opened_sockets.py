"""The calls that opened a socket, for the warning that nobody closed it.

Python warns about such a socket when it frees it. If the garbage collector does so, this may be
much later, and pytest blames the test that runs then. So the warning gets a note: the test that
opened the socket, and the calls that led there.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import traceback
from typing import Any, Final

_CALLS: Final = 24
"""Number of innermost calls to note."""


class OpenedSockets:
    """Knows of each file descriptor which socket was last opened on it."""

    def __init__(self) -> None:
        self._opened: dict[int, tuple[str, traceback.StackSummary]] = {}

    def install(self) -> None:
        """Note each socket from now on, in this process; explain each warning about one.

        To be called once, and after pytest has set the hook that collects warnings.
        """
        init, hook = socket.socket.__init__, sys.unraisablehook

        def noting_init(opened: socket.socket, *args: Any, **kwargs: Any) -> None:
            init(opened, *args, **kwargs)
            self.note(opened)

        def explaining_hook(unraisable: Any) -> None:
            if isinstance(unraisable.exc_value, ResourceWarning):
                self.explain(unraisable.exc_value)
            hook(unraisable)

        socket.socket.__init__ = noting_init  # type: ignore[assignment, method-assign]
        sys.unraisablehook = explaining_hook

    def note(self, opened: socket.socket) -> None:
        """Note who opens a socket."""
        frames = traceback.walk_stack(sys._getframe(1))
        calls = traceback.StackSummary.extract(frames, limit=_CALLS, lookup_lines=False)
        calls.reverse()
        self._opened[opened.fileno()] = os.environ.get("PYTEST_CURRENT_TEST", "no test"), calls

    def explain(self, warning: ResourceWarning) -> None:
        """Add to a warning who opened the socket; nothing if it is about something else."""
        found = re.search(r"unclosed <.*\bfd=(\d+)", str(warning))
        opened = self._opened.get(int(found[1])) if found else None
        if opened is not None:
            test, calls = opened
            warning.add_note(f"Opened in {test}:\n{''.join(calls.format())}")
