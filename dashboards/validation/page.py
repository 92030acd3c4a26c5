"""The validation page: how far the cost models are from measurements, on rows fitted, held out and of other devices."""

from tokentape.dashboards.engine import declared

FILE, TITLE, asked, page = declared(__file__)
