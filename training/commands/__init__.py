"""The commands of `slipform`, one a file."""
