"""Whole systems of policies side by side."""
