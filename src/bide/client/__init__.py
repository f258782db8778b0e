"""The only I/O: commands run over blocking and asyncio connections."""
