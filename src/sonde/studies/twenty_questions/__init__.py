"""The Twenty Questions study: whether a model knows that it is about to break the rules, and whether steering helps."""
