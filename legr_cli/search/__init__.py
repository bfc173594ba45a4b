"""Learning a ranking: evolution, the fitness of a candidate, workers, and the journal."""
