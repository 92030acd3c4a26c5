"""A tape by itself, and two side by side."""
