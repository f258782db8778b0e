"""Pure values: what jobs, schedules and events are, without any I/O."""
