"""What does each layer do for a model, and does the order matter? The study of layer corruptions.

Layers are skipped, swapped, reversed, shuffled, run side by side and repeated, as in Lad et al. (arXiv 2406.19384), Sun et
al. (arXiv 2407.09298) and Men et al. (arXiv 2403.03853), on ten texts; predictions are compared with the intact model's.
"""
