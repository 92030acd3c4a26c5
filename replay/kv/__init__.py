"""A tape's attention through policies that keep part of the KV cache."""
