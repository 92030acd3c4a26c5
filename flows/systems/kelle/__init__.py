"""Kelle: KV eviction, recomputation and refresh on embedded DRAM; its cost model swept, and what it says about the paper."""
