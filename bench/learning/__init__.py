"""The learning run: seconds of training until the shipped tiny model solves its task, oncurve and TRL."""
