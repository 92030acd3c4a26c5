"""The page of Layered Prefill."""
