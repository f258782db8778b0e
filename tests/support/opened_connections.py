"""The calls that opened a socket or a database's connection, for the warning that none closed it.

Python warns about such an object when it frees it. If the garbage collector does so, this may be
much later, and pytest blames the test that runs then. So the warning gets a note: the test that
opened the connection, and the calls that led there.
"""

from __future__ import annotations

import functools
import os
import re
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any, Final

_CALLS: Final = 24
"""Number of innermost calls to note."""

_UNCLOSED: Final = re.compile(r"unclosed <.*\b(fd=\d+)|object at (0x[0-9a-f]+)> was deleted")


class OpenedConnections:
    """Knows of each file descriptor, and of each object, who last opened a connection there."""

    def __init__(self) -> None:
        self._opened: dict[str, tuple[str, traceback.StackSummary]] = {}

    def install(self) -> None:
        """Note each socket from now on, in this process; explain each warning.

        To be called once, and after pytest has set the hook that collects warnings.
        """
        hook = sys.unraisablehook

        def explaining_hook(unraisable: Any) -> None:
            if isinstance(unraisable.exc_value, ResourceWarning):
                self.explain(unraisable.exc_value)
            hook(unraisable)

        sys.unraisablehook = explaining_hook
        self.note_each(socket.socket, lambda opened: f"fd={opened.fileno()}")

    def note_each(
        self, kind: type[Any], name: Callable[[Any], str] = lambda it: hex(id(it))
    ) -> None:
        """Note each object of a class from now on, under the name that its warning has."""
        init = kind.__init__

        @functools.wraps(init)
        def noting_init(opened: Any, *args: Any, **kwargs: Any) -> None:
            init(opened, *args, **kwargs)
            self.note(name(opened))

        kind.__init__ = noting_init

    def note(self, name: str) -> None:
        """Note who opens a connection."""
        frames = traceback.walk_stack(sys._getframe(1))
        calls = traceback.StackSummary.extract(frames, limit=_CALLS, lookup_lines=False)
        calls.reverse()
        self._opened[name] = os.environ.get("PYTEST_CURRENT_TEST", "no test"), calls

    def explain(self, warning: ResourceWarning) -> None:
        """Add to a warning who opened the connection; nothing if it is about something else."""
        found = _UNCLOSED.search(str(warning))
        opened = self._opened.get(found[1] or found[2]) if found else None
        if opened is not None:
            test, calls = opened
            warning.add_note(f"Opened in {test}:\n{''.join(calls.format())}")


OPENED: Final = OpenedConnections()
"""Those of this process."""
