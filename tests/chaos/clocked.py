"""bide's command line, with scripts whose clock a test can set."""

from __future__ import annotations

from bide.cli import main
from bide.client.config import override
from bide.protocol.scripts import TEST_CLOCK

if __name__ == "__main__":
    with override(clock=TEST_CLOCK):
        main()
