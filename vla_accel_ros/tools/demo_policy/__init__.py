"""How the bundled demo policy is made: recipe, data, training, evaluation."""
