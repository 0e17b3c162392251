"""The main table: oncurve and the other systems at the same work, the correctness gate, the limits of the machine."""
