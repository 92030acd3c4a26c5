"""The page of machines: parts, rooflines, where a step goes."""
