"""Real models and foreign traces become tapes here; torch, transformers and datasets live in this room only."""

import os

# Read by huggingface_hub and transformers when they are imported, so it has to stand before any of our modules imports them.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("DO_NOT_TRACK", "1")
