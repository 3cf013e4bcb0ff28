"""Random input for everything that takes input, each case in a process and a folder of its own.

`python -m fuzz` (with tests/ on the path) or `make fuzz N=10000` runs cases; docs/reliability.md says what they hold.
"""
