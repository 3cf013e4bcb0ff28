"""The commands, one file each: `add` declares the flags, and the rest is a few lines over the library."""
