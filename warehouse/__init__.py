"""Where data rests: the schema of every table, tapes and results as Parquet, DuckDB, claims and queries."""

if not __name__.startswith("tokentape."):
    raise ImportError(f"{__name__}/ is a folder of tokentape's checkout; write: import tokentape.{__name__}")
