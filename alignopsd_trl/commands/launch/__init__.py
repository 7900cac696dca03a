"""The parts behind the recipes: arguments, presets, plan, and one run from evaluation to evaluation."""
