"""What an inference instance does with its time and memory."""
