"""Figures and pages. No torch: everything here takes plain arrays."""
