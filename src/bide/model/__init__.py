"""Pure values: jobs, schedules, events and options, without I/O."""
