"""SliceMoE: sweeps over synthetic and captured tapes, the policy inside a live model, and what both say about the paper."""
