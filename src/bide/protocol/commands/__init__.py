"""Operations as values: each function returns a `Command` and does no I/O.

`produce` adds jobs, `consume` is the worker's side, `manage` changes jobs and queues, `inspect`
reads, `ahead` looks at what is due when, `registry` knows queues and workers, `listen` holds the
stream of events open.
"""
