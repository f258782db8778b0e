"""One run of a job, from its stored body to its outcome."""
