"""GGUF files: the network and the tokenizer that one file describes."""
