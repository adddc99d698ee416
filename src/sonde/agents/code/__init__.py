"""Repairing code: small repositories with a bug, a shell to work in, and hidden tests that judge."""
