"""Facts about a model that are found by running it at load: bounded in time, and cached with the model."""
