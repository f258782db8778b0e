"""Runs an example: `python -m examples order_desk`.

Each example is a module with a `main`. A server is started around it; and where the module has
tasks, with a `queue`, a worker, as a process of its own, as in earnest. What the worker logs stands
on standard error. With `$BIDE_URL` set, that server is used.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from bide.embedded import Server

HERE = Path(__file__).parent
NAMES = sorted(file.stem for file in HERE.glob("[!_]*.py"))


def main(args: list[str]) -> None:
    """Run the example that is named."""
    if len(args) != 1 or args[0] not in NAMES:
        sys.exit(f"Name one example: {', '.join(NAMES)}.")
    module = f"examples.{args[0]}"
    with ExitStack() as stack:
        if "BIDE_URL" not in os.environ:
            os.environ["BIDE_URL"] = stack.enter_context(Server.start()).url
        os.environ["PYTHONPATH"] = str(HERE.parent)
        os.chdir(stack.enter_context(tempfile.TemporaryDirectory()))
        example = importlib.import_module(module)
        if hasattr(example, "queue"):
            command = [sys.executable, "-m", "bide", "worker", module, "-q", example.queue.name]
            worker = stack.enter_context(subprocess.Popen(command))
            stack.callback(worker.terminate)
        example.main()


if __name__ == "__main__":
    main(sys.argv[1:])
