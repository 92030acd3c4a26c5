"""Speculative decoding of any captured model: drafters, the draft-and-verify loop, its tape and its measurements."""
