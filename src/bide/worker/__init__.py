"""The worker: claims jobs, runs them, settles them, and sleeps until the next is due.

`worker` is the public class; `loop` decides what to send and how long to wait; `station` is one
queue as the worker sees it; `running` carries a job from its claim to its outcome; `threads` runs
plain functions. One background duty a file: `leases` renews, `ear` hears wake hints, `alarm` fires
at the next due time, `deadlines` ends jobs that run too long, `heartbeat` says that it lives.
"""

from bide.worker.worker import Worker

__all__ = ["Worker"]
