"""Tasks by name, middlewares and resources."""
