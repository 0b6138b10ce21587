"""What the figures of this project come from. Nothing else may import it."""
