"""What do recorded activations show, and how sure may one be? Statistics, probes, directions, on numpy arrays."""
