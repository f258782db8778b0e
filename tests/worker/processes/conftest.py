"""Workers whose jobs run in processes."""

from tests.support.process_fixtures import executor, shared, shared_worker, stand

__all__ = ["executor", "shared", "shared_worker", "stand"]
