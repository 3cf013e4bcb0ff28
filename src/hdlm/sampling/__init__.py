"""Generation: one loop over the steps of a hyperschedule. Knows a network only as something that scores slots."""
