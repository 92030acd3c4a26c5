"""Figures as data: a figure's TOML file and its rows become a Vega-Lite chart."""
