"""The libraries that are measured side by side: one file for each, which anyone can add.

A file runs in an environment of its own, which has the library and no bide. It begins with what
that environment needs, as inline script metadata (`# /// script`), and has

- `ABOUT`: the package whose version is told, and its guarantees: what becomes of a job whose worker
  dies (`acks`), and where jobs wait that are not due yet (`delays`);
- `WORKERS`: by name, the command that starts a worker and how many jobs keep it busy for about a
  second. Settings are the fastest that the library's documentation names;
- `enqueue(numbers, worker)`: put jobs, one for each number, where that worker finds them, as fast
  as the library can;
- `FAULTS`: the command that starts a worker with the settings that are its defaults, and which
  these are;
- `hold(delays, seconds)`: put jobs that take so long, one for each number, due after its delay;
- the jobs: one calls `mark(number)` and does nothing else, the other `take(number, seconds)`.

`common.py` has what they share, and needs nothing but Python. Whoever looks at this from outside
(`benchmarks.peer`) speaks to it over a pipe, so that a peer may be written in another language.
"""
