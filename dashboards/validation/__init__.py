"""The page of GPU operators against measured kernels."""
