"""What is said to the server: keys, scripts, and commands as values; no I/O."""
