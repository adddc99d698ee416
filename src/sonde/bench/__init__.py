"""Models whose circuit is known: a language, a compiler, cases, training, and methods measured against them."""
