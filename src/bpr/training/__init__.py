"""Training: examples, negatives, the two encoders, and what turns other people's files into ours. No imports here.

The command line calls the modules one by one, so that reading examples or mining with BM25 does not load torch.
"""
