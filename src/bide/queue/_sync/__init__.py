"""Queues, jobs, events and schedules for code that blocks."""
