"""What an administrator applies so that the engine can run: objects as plain data, made from a topology."""
