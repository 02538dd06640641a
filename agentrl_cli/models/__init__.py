"""All weights of a run: the named models (`set`), one differentiable pass (`policy`), small heads
(`heads`)."""
