"""The Layered Prefill page: the paper's numbers beside ours, what schedulers and their knobs do, and where layers do not help."""

from tokentape.dashboards.engine import declared

FILE, TITLE, asked, page = declared(__file__)
