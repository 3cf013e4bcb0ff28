"""Ways to look at text while it is written: in a terminal, and in a page that plays it again. Knows no network."""
