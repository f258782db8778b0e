"""Runs jobs in child processes, so that a crash, a hang or a leak affects only its own child.

    worker ──control──> fork server ──fork──> child, child, …
       │ ^                                      │ ^
       │ └──────────────── replies ─────────────┘ │
       └────────────────── jobs ──────────────────┘

The worker claims jobs, renews leases and settles, and runs no job. The fork server is a new process
without threads and connections. It imports the served modules and forks children.

All children read jobs from one socket, one job at a time. So a job that has not started belongs to
no child, and is not lost if a child dies. A job table in shared memory shows which child runs which
job, and survives the death of any process. So a crash counts only against the job that ran in the
crashed child.
"""
