"""Kelle's cost model: time and energy of an edge accelerator whose KV cache lies in embedded DRAM. Analytic, needs no tape."""
