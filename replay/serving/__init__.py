"""Serving: arrivals through a scheduler, priced iteration by iteration."""
