"""A card for half an hour: whether oncurve is right on it, how fast, and others. `python -m bench.gpu day A`"""
