"""What is seen: pictures of hyperschedules and layouts, the live view, the replay page, the scenes of the demo."""
