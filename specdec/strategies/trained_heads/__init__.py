"""What strategies with a trained head share: engine, drafters, candidates, and checks of the target."""
