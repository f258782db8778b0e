"""Workers whose jobs run in processes."""

from tests.support.process_fixtures import bench, executor, shared, shared_worker

__all__ = ["bench", "executor", "shared", "shared_worker"]
