"""Real models and foreign traces become tapes here; torch, transformers and datasets live in this room only."""

if not __name__.startswith("tokentape."):
    raise ImportError(f"{__name__}/ is a folder of tokentape's checkout; write: import tokentape.{__name__}")

import logging
import os

# Read by huggingface_hub and transformers when they are imported, so it has to stand before any of our modules imports them.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("DO_NOT_TRACK", "1")
for _name in ("torchao", "torch.utils._pytree"):  # torchao says at every import what kernels its build lacks
    logging.getLogger(_name).setLevel(logging.ERROR)
