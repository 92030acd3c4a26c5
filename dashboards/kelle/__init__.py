"""The page of Kelle."""
