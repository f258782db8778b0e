"""Several workers as one unit: started, watched, started again, and stopped together.

    supervisor ──line──> member (a worker), member, …

The supervisor runs no job and knows no server. Each member is a process of its own, in a session of
its own, on a line: it is told its plan, says every second how it is, and stops when the line ends,
because then the supervisor is dead.
"""

from bide.supervisor.supervisor import Supervisor

__all__ = ["Supervisor"]
