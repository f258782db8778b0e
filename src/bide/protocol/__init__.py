"""The protocol with the server: keys, scripts, and commands as values, without I/O."""
