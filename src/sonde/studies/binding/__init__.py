"""How does a small transformer learn to follow variables? The variable-binding paper (arXiv 2505.20896) in small.

`language` has the programs and the tokenizer, `network` the model, `training` the run that makes one, `shipped` those
that come with the package, `patching` and `spaces` look inside, `pages` tells, `study` does all of it.
"""
