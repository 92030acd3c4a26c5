"""Wires the other rooms: the command line, studies and their grid, Prefect flows and schedules. Computes nothing itself."""
