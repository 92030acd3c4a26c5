"""GPU and CXL near-data processing: what a tape's routing says of placements (CXL GPU-NDP)."""
