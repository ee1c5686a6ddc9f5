"""What the scheduler may know of the network."""
