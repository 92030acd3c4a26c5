"""Record once, replay anywhere: what a language model did, token by token, through memory policies and machines."""
