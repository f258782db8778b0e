"""Functions by name, and what surrounds their runs."""
