"""Speed: what training and sampling cost here, beside what the hardware allows."""
