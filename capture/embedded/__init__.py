"""The small trained MoE that ships with the project: its texts, its training script and its weights."""
