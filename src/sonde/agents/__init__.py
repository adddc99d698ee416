"""Agents: clients that answer requests, and episodes played with them."""
