"""The optimizer: AdamW over full-precision masters, by slices and by looked-up rows."""
