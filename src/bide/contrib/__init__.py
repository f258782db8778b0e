"""Support for other libraries; each package but `outbox` needs the extra of its name."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needed(library: str, extra: str) -> Iterator[None]:
    """Import a library of an extra.

    Raises:
        ImportError: it is not installed; the message says how to install it.
    """
    try:
        yield
    except ImportError as error:
        raise ImportError(
            f"bide.contrib.{extra} needs {library}: run `pip install 'bide[{extra}]'`."
        ) from error
