"""Queues, jobs, events and schedules for code on an event loop."""
