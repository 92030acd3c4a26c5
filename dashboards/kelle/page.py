"""The Kelle page: what five systems gain and lose in a cost model, what eviction does to attention, and both beside the paper."""

from tokentape.dashboards.engine import declared

FILE, TITLE, asked, page = declared(__file__)
