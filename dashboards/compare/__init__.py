"""Whatever ran on a tape, side by side."""
