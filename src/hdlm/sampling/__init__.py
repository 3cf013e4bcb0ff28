"""From noise to text: the reference loop, the step rules, random numbers, prompts and gaps, results.

Imports the theory and plain settings. Knows a network as a trunk, a head and a cache.
"""
