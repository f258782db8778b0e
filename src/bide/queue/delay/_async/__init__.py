"""Delay queues for code on an event loop."""
