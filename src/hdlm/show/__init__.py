"""What a model can do, shown in a terminal in a minute. Calls what a user could call."""
