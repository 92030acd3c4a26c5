"""Where data rests: the schema of every table, tapes and results as Parquet, DuckDB, claims and queries."""
