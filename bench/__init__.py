"""Speed, as ratios against a peer in the same run. `python -m bench` prints a report; its last line is one JSON document."""
