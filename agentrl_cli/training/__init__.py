"""What the loop calls: assembly of a run, the learner and its optimizers, evaluation."""
