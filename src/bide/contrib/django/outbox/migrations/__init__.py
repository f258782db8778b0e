"""The migrations of the outbox's tables."""
