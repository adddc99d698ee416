"""How a small transformer learns to follow variables: the variable-binding paper (arXiv 2505.20896) in small.

`language` has the programs and the tokenizer, `network` the model, `training` how one is made, `shipped` those
that come with the package, `patching` and `spaces` look inside, `verdict` judges, `pages` shows, `study` has the experiments.
"""
