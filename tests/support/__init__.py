"""What several tests need: scripted strategies, model families, fresh processes."""
