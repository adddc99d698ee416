"""The Twenty Questions study: does a model know that it is about to break the rules, and does steering help?"""
