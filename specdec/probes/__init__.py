"""Facts about a model that loading finds out by trying it: bounded in time, and remembered with the model."""
