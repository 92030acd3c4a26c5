"""The page of comparisons: all runs that share a tape, a machine and their requests, whatever made them."""

from tokentape.dashboards.engine import declared

FILE, TITLE, asked, page = declared(__file__)
