"""Operations as values: each function returns a `Command` and does no I/O.

`enqueue` adds jobs, and `dependencies` says what they wait for. `worker` is the worker's side.
`jobs` reads and changes jobs and their queue; `queues` lists queues, groups and workers;
`schedules` sets schedules. `fsck` checks and repairs what is stored.
"""
