"""Loading models, their Sites, and the generation engine."""
