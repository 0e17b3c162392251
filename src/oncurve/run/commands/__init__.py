"""The commands of the command line but `train` and `resume`: what each reads, computes and prints."""
