"""SliceMoE: expert slices at two precisions, rerouted by what is cached."""
