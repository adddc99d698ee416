"""Circuits: the model as a graph of edges, and methods that find those which explain a behaviour."""
