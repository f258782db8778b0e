"""The lines between worker, fork server and children, when they are full."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from bide.worker.processes.ipc import (
    NoteAdded,
    Setting,
    Spawn,
    Spawned,
    decode_pool_event,
    encode,
    send,
)
from bide.worker.processes.pool import Control, ProcessPool

SETTING = Setting("process", "w1", [], [], [], None, None, "bide", None, None, None, None)
MANY = 2000

PROGRAM = f"""#!{sys.executable}
# Stands for a fork server that is slow at its imports, and then makes what it is told to.
import os, socket, sys, time
from bide.worker.processes.ipc import Spawned, Reader, decode_spawn, encode, send
line = socket.socket(fileno=int(sys.argv[-4]))
reader = Reader(line)
reader.read()
while not os.path.exists(__file__ + ".go"):
    time.sleep(0.003)
while message := reader.read():
    slot = decode_spawn(message).slot
    send(line, encode(Spawned(slot, 1)))
"""


@pytest.mark.anyio
async def test_all_children_are_asked_for_however_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, go = tmp_path / "fork_server", tmp_path / "fork_server.go"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    born: list[int] = []
    all_born = asyncio.Event()

    def heard(message: bytes | memoryview) -> None:
        event = decode_pool_event(message)
        assert isinstance(event, Spawned)
        born.append(event.slot)
        if len(born) == MANY:
            all_born.set()

    fork_server = Control(
        "bide.worker.processes.forkserver:main", encode(SETTING), [0, 1, 2], heard, all_born.set
    )
    try:
        for slot in range(MANY):
            fork_server.send(encode(Spawn(slot)))
        go.touch()
        async with asyncio.timeout(20):
            await all_born.wait()
    finally:
        fork_server.close()
        fork_server.kill()
    assert born == list(range(MANY))


@pytest.fixture
def pool() -> Any:
    pool: Any = ProcessPool(SETTING, 1)
    yield pool
    for line in (pool._assigns, pool._assigns_child, pool._replies, pool._replies_child):
        line.close()
    pool._table.close()
    os.close(pool._fd)


def test_no_more_is_heard_at_once_than_was_said_before(pool: ProcessPool) -> None:
    heard: list[int] = []
    pool.on_messages(lambda replies: heard.append(len(replies)), lambda *_: None, lambda: None)
    pool._max_messages = 3
    for number in range(5):
        send(pool._replies_child, encode(NoteAdded(number, "log", b"")))
    pool.read_messages()
    pool.read_messages()
    assert heard == [3, 2]


def test_and_no_less(pool: ProcessPool) -> None:
    """Whatever the line holds is heard at once: what one had said who is dead is among it."""
    pool._replies_child.setblocking(False)
    count = 0
    with suppress(BlockingIOError):
        while True:
            send(pool._replies_child, b"x")
            count += 1
    assert 100 < count <= pool._max_messages
