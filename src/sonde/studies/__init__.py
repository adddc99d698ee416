"""Whole experiments, from question to figures."""
