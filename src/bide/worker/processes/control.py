"""A nursery, as the worker sees it: its process, and the line to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from bide.worker.processes import kin
from bide.worker.processes.fresh import fresh_python
from bide.worker.processes.wire import (
    News,
    Reader,
    Setting,
    Spawn,
    decode_news,
    encode,
    pair,
    send,
)

_LOOK_EVERY: Final = 0.01


class Control:
    """Starts a nursery, tells it which children to make, and hears what becomes of them."""

    def __init__(
        self,
        setting: Setting,
        fds: Sequence[int],
        mark: str,
        heard: Callable[[News], None],
        died: Callable[[], None],
    ) -> None:
        """Start it, in the event loop that will hear it.

        Args:
            setting: what it needs to know.
            fds: the descriptors that it takes over: orders, replies, the table.
            mark: what all of its descendants are known by.
            heard: called with each of its news.
            died: called when there will be none any more.

        Raises:
            OSError: no process is to be had, or it died at once.
        """
        self._heard, self._died = heard, died
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[bytes] = deque()
        self._line, theirs = pair()
        try:
            with theirs:
                self._process = _start([theirs.fileno(), *fds], mark)
            try:
                send(self._line, encode(setting))
            except OSError:
                self.kill()
                raise
        except BaseException:
            self._line.close()
            raise
        self._line.setblocking(False)
        self._reader = Reader(self._line)
        self._loop.add_reader(self._line, self._read)

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def spawn(self, slot: int) -> None:
        """Have a child made for a slot."""
        self._unsent.append(encode(Spawn(slot)))
        if len(self._unsent) == 1:
            self._send()

    def _send(self) -> None:
        try:
            while self._unsent:
                send(self._line, self._unsent[0])
                self._unsent.popleft()
        except BlockingIOError:  # it is at its imports, say, and reads later
            self._loop.add_writer(self._line, self._send)
            return
        except OSError:  # it has died, which is heard too
            self._unsent.clear()
        self._loop.remove_writer(self._line)

    def _read(self) -> None:
        try:
            while not self._is_closed:
                message = self._reader.read()
                if message is None:
                    self._died()
                    return
                self._heard(decode_news(message))
        except BlockingIOError:
            return
        except OSError:
            self._died()

    @property
    def _is_closed(self) -> bool:
        return self._line.fileno() < 0

    def close(self) -> None:
        """Hear no more of it, and let it end: it kills all that is its own first."""
        if not self._is_closed:
            self._loop.remove_reader(self._line)
            self._loop.remove_writer(self._line)
            self._line.close()

    async def wait(self, seconds: float) -> None:
        """Wait until its process has ended, but not for longer than that."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._process.poll() is None:  # noqa: ASYNC110 - no event tells of it
                    await asyncio.sleep(_LOOK_EVERY)

    def kill(self) -> None:
        """End its process, whatever it is at."""
        self._process.kill()
        self._process.wait()


def _start(fds: Sequence[int], mark: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        fresh_python("bide.worker.processes.nursery:main", *map(str, fds)),
        pass_fds=fds,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env=os.environ | {kin.MARK: mark},
    )
