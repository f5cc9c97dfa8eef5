"""Models: loading, fingerprints of what a model computes, and properties of its code."""
