"""The page of tapes: what a model did, token by token, that makes policies gain or lose."""

from tokentape.dashboards.engine import declared

FILE, TITLE, asked, page = declared(__file__)
