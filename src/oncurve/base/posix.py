"""Modules that Linux and macOS have, and Windows has not. Importing this says so in a sentence."""

from oncurve.base.errors import UserError

try:
    import fcntl as fcntl
    import resource as resource
except ImportError as error:
    raise UserError(f"oncurve trains on Linux and macOS: {error}. On Windows, use the Linux of WSL.") from None
