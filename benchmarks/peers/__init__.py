"""The libraries that are measured side by side: one file for each, which anyone can add.

A file runs in an environment of its own, which has the library and no bide. It begins with what
that environment needs, as inline script metadata (`# /// script`), and has

- `ABOUT`: its `name`; the `package` whose version is told; the `best` of its workers, by which
  everything is measured but throughput, which is measured by all; and its guarantees: what becomes
  of a job whose worker dies (`acks`), where jobs wait that are not due yet (`delays`), and whether
  one that waits can be found by its id (`by_id`);
- `WORKERS`: by name, the command that starts a worker and how many jobs keep it busy for about a
  second. Settings are the fastest that the library's documentation names;
- `FAULTS`: the command that starts a worker with the settings that are its defaults, and which
  these are;
- the calls that enqueue, those that the library has: `one(task, args, at)` for one job and
  `many(calls)` for many at once, or coroutines of the same, `aone` and `amany`, which run while
  `session()` is open. `task` is a function's name, `at` when it is due, in seconds since the epoch,
  or None. A library whose call for many cannot delay them raises NotImplementedError;
- the jobs: `job` calls `mark(number)` and does nothing else, `held` calls `take(number, seconds)`.

`common.py` has what they share, and needs nothing but Python. Whoever looks at this from outside
(`benchmarks.peer`) speaks to it over a pipe, so that a peer may be written in another language.
"""
