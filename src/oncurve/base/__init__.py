"""Functions that every room uses and that use none: errors, output, paths, code by its path, requests, closing."""
