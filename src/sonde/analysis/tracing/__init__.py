"""Activation patching sweeps: which place in the model, at which token, carries the answer?"""
