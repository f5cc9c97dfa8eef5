"""Engine, drafters and candidates of the strategies with a trained head, and checks of their target."""
