"""What the hardware page calls the memory of an engine that reads it in another way than through the tier's interface."""

OWN_MEMORY = "'s memory"  # behind the engine's name
