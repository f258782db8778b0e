"""The line between a worker and its children, when one end goes without having read all."""

from __future__ import annotations

from bide.worker.processes.ipc import Reader, pair, send


def test_a_writer_that_has_gone_without_reading_is_the_end_like_any_other() -> None:
    ours, theirs = pair()
    with ours:
        send(ours, b"never read")
        theirs.close()
        assert Reader(ours).read() is None


def test_what_it_had_written_is_read_first() -> None:
    ours, theirs = pair()
    with ours:
        send(ours, b"never read")
        send(theirs, b"its last words")
        theirs.close()
        reader = Reader(ours)
        assert bytes(reader.read() or b"") == b"its last words"
        assert reader.read() is None
