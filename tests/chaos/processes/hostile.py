"""Jobs that do to their process what jobs of real users do to theirs, and worse."""

from __future__ import annotations

import asyncio
import ctypes
import io
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

from bide import JobCancelled, JobTimeout, current_job
from bide.model.context import CurrentJob
from tests.support.process_tasks import gate, note, wait_for


def ran() -> str:
    """One that does nothing to anybody."""
    note("ran")
    return "ran"


async def ran_async() -> str:
    note("ran")
    return "ran"


# -- those that die


def segfault() -> None:
    note("begun")
    current_job().log("about to read address 0")
    ctypes.string_at(0)


async def segfault_async() -> None:
    segfault()


def leave(code: int) -> None:
    note("begun")
    os._exit(code)


def abort() -> None:
    note("begun")
    os.abort()


def kill(number: int) -> None:
    note("begun")
    os.kill(os.getpid(), number)
    time.sleep(3600)


def kill_parent() -> None:
    note("begun")
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(3600)


def spend_time() -> None:
    """Until a limit of the system's kills it."""
    note("begun")
    used = int(time.process_time())
    resource.setrlimit(resource.RLIMIT_CPU, (used + 1, used + 1))
    while True:
        pass


def close_everything() -> None:
    note("begun")
    os.closerange(3, 4096)


def swap_everything() -> None:
    """Closes all descriptors, and has others under their numbers."""
    note("begun")
    last = max(map(int, os.listdir("/proc/self/fd")))
    os.closerange(3, last + 1)
    for _ in range(3, last + 1):
        os.open("/dev/null", os.O_RDWR)


def close_its_loop() -> None:
    """Closes what the event loop waits with, as one does that closes a descriptor twice."""
    note("begun")
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            if "eventpoll" in os.readlink(f"/proc/self/fd/{fd}"):
                os.close(int(fd))


def leak_into(number: int) -> None:
    """What has our lines now says what it likes."""
    note("begun")
    last = max(map(int, os.listdir("/proc/self/fd")))
    os.closerange(3, last + 1)
    kept.extend(socket.socketpair() for _ in range(last // 2))


kept: list[tuple[socket.socket, socket.socket]] = []


def take_all_descriptors() -> str:
    """As a leak does in the end."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with suppress(OSError):
        while True:
            os.open("/dev/null", os.O_RDONLY)
    return "taken"


async def doubled(number: int) -> int:
    return 2 * number


def use_a_loop_of_its_own() -> int:
    """And close it, as a script does."""
    loop = asyncio.get_event_loop()
    try:
        return loop.run_until_complete(doubled(1))
    finally:
        loop.close()


def shut_all_down() -> None:
    """Shuts down all sockets, also those that children share, as one closes a stale number."""
    note("begun")
    for fd in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError), socket.socket(fileno=os.dup(fd)) as line:
            line.shutdown(socket.SHUT_RDWR)


def let_nothing_block() -> str:
    """Says of all sockets, also those that children share, that they do not block."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            os.set_blocking(fd, False)
    return "unblocked"


class _Stuck(io.StringIO):
    """Prints nothing; its last words take for ever."""

    flushed = 0

    def flush(self) -> None:
        self.flushed += 1
        if self.flushed > 1:
            time.sleep(3600)


def end_slowly() -> str:
    """Its child needs long to end after all is said about the job."""
    note("begun")
    sys.stdout = _Stuck()
    return "ended"


# -- those that do not end


def hold_the_gil(numbers: int) -> str:
    """Lets go of nothing and looks for no signal: about 10 ns a number."""
    note("begun")
    sum(range(numbers))
    note("ended")
    return "summed"


def block_signals() -> None:
    note("begun")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    current_job().log("deaf")
    while True:
        time.sleep(1)


def chatter() -> None:
    note("begun")
    while True:
        current_job().log("x")


def chatter_in_threads() -> None:
    threads = [threading.Thread(target=chatter, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    current_job().log("begun")
    note("begun")
    while True:
        current_job().progress(0.5)


def pass_over_errors() -> None:
    """As much code does around files and sockets."""
    note("begun")
    for _ in range(10_000):
        with suppress(OSError):
            time.sleep(3600)


def asked_again() -> None:
    """Takes its time to tidy up once it has been asked to stop."""
    note("begun")
    while True:
        try:
            time.sleep(3600)
        except JobCancelled:
            note("asked")
            wait_for("asked")
            note("tidied")
            raise


async def asked_again_async() -> None:
    note("begun")
    try:
        await asyncio.sleep(3600)
    finally:
        note("asked")
        while not gate("asked").exists():  # noqa: ASYNC110 - the test is another process
            await asyncio.sleep(0.003)
        note("tidied")


def swallow() -> None:
    note("begun")
    while True:
        with suppress(JobTimeout):
            time.sleep(3600)


def in_del() -> None:
    """Where an exception is printed and forgotten."""
    note("begun")

    class Slow:
        def __del__(self) -> None:
            time.sleep(0.5)

    while True:
        Slow()


async def block_the_loop() -> None:
    note("begun")
    time.sleep(3600)  # noqa: ASYNC251 - the point of it


def power() -> int:
    note("begun")
    return pow(7, 10**9)  # type: ignore[no-any-return]


def hold_the_gil_for(seconds: float) -> str:
    """By pieces of C code that let go of nothing, until its own time is over."""
    note("begun")
    until = time.monotonic() + seconds
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        while time.monotonic() < until:
            sum(range(10**6))
    finally:
        sys.setswitchinterval(switch)
    note("ended")
    return "held"


def deadlock() -> None:
    note("begun")
    lock = threading.Lock()
    lock.acquire()
    if os.fork() == 0:
        lock.acquire()
    lock.acquire()


def told(job: CurrentJob, error: object) -> None:
    note("told", job.id, str(error))


def told_forever(job: CurrentJob, value: object) -> None:
    note("told", job.id)
    time.sleep(3600)


def told_and_dies(job: CurrentJob, error: object) -> None:
    note("told", job.id, str(error))
    os._exit(9)


def no_more(attempt: int, error: BaseException) -> float | None:
    note("asked", attempt)
    return 0 if attempt < 2 else None


def kills_the_judge(attempt: int, error: BaseException) -> float | None:
    os._exit(4)


# -- those that leave something behind


def leave_processes() -> int:
    note("begun")
    child = subprocess.Popen(["sleep", "1000"])
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    os.system("sleep 1000 &")
    return child.pid


def daemonize(name: str) -> str:
    """A daemon as the books have it: forked twice, in a session of its own; lives until `name`."""
    reader, writer = os.pipe()
    if pid := os.fork():
        os.close(writer)
        os.waitpid(pid, 0)
        daemon = int(os.read(reader, 20))
        os.close(reader)
        note("daemon", daemon)
        return str(daemon)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.write(writer, str(os.getpid()).encode())
    os.closerange(0, 4096)
    while True:
        time.sleep(1)


def daemon_and_die() -> None:
    daemonize("")
    os._exit(3)


def with_a_daemon(name: str) -> bool:
    """Whether a daemon of this job still lives when the test says so."""
    daemon = int(daemonize(name))
    wait_for(name)
    with open(f"/proc/{daemon}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"


def many_daemons(count: int) -> int:
    for _ in range(count):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os._exit(0)
            os._exit(0)
        os.wait()
    return count


def zombies() -> int:
    """How many dead processes this one has not reaped."""
    me, found = os.getpid(), 0
    for name in os.listdir("/proc"):
        with suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{int(name)}/stat") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
            found += state == "Z" and int(parent) == me
    return found


# -- those that take


def hoard(size: int) -> str:
    """Leaves no descriptor for anybody else."""
    with suppress(OSError):
        while True:
            hoarded.append(os.open("/dev/null", os.O_RDONLY))
    return "x" * size


hoarded: list[int] = []


def write_little(size: int) -> str:
    """Leaves no way to write more than a little into any file, memory among them."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    return "x" * size


def allocate() -> None:
    """Until a limit of the system's refuses more."""
    note("begun")
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + (200 << 20), before[1]))
    taken = []
    try:
        while True:
            taken.append(bytearray(1 << 20))
    finally:
        taken.clear()
        resource.setrlimit(resource.RLIMIT_AS, before)


def print_much(megabytes: int) -> int:
    line = "x" * 1023
    for _ in range(megabytes << 10):
        print(line)
    sys.stderr.write(f"{line}\n" * 1024)
    return megabytes
