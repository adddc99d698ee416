"""Sandboxes: where an agent's shell commands run, and what they cannot reach."""
