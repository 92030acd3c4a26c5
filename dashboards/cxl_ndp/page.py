"""The CXL GPU-NDP page: how much faster experts decode where they lie, what routing and low bits allow, and what it rests on."""

from tokentape.dashboards.engine import declared

FILE, TITLE, asked, page = declared(__file__)
