"""From a recipe to a trained run: schedule, optimiser, step, checkpoints and the loop."""
