"""Jobs in processes of their own: what crashes, hangs or leaks there is nobody else's problem.

    worker ──control──> nursery ──fork──> child, child, …
       │ ^                                  │ ^
       │ └────────────── replies ───────────┘ │
       └──────────────── jobs ────────────────┘

The worker claims, renews leases, settles, and runs no job. The nursery is a process of its own,
started afresh, without threads and without connections: it imports what is served and forks
children from that, warm and clean. All children take jobs from one socket, one at a time, whoever
is free first, so what was not begun is nobody's and never lost with a child. What runs where stands
in a table in shared memory, which outlives whoever dies: a crash counts only against the job that
ran there.
"""
